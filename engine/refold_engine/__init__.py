"""The engine of refold: deterministic agent turns over the store. Empty for now.

Imports the store; never replay, dashboards or the command line.
"""
