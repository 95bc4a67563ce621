"""Replay: bring recorded runs in, check them against answers, verify a log, compare moments.

Imports engine and store; never dashboards or the command line.
"""
