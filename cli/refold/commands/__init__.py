"""The commands of the command line, one module a group. app.py says which stands where."""
