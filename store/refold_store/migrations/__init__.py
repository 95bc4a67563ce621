"""The schema's history, run by Alembic: package data of an installed refold, without an ini file.

Rules: a revision is frozen once released; its SQL is text, one file a database, so that it never follows a later
`tables.py`; it declares PHASE, "pre" (safe while processes of the release before go on) or "post" (only after all of
them are gone); nothing is ever downgraded, because an event log does not go back.
"""
