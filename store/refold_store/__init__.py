"""The store: owned keys, versioned writes, recorded reads, one log for each run.

Imports no other part. Users import from `refold`.
"""
