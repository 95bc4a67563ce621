"""`refold` and `python -m refold`."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    from refold.app import root

    root.main(prog_name="refold")
    raise SystemExit  # not reached: main exits


if __name__ == "__main__":
    main()
