"""refold's benchmarks: ratios against the bare driver and against the best peers, with the counts that do not drift.

Run as `python -m bench`; README.md here tells how to read what it prints.
"""
