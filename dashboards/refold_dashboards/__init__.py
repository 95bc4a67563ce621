"""The web console of refold. Empty for now.

Imports replay, engine and store; never the command line.
"""
