"""Verification and import: rates against a bare scan."""
