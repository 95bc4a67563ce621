"""`refold` and `python -m refold`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    try:
        _have_streams()
        from refold.app import root

        root.main(prog_name="refold")
    except KeyboardInterrupt:  # while modules are loaded, or at the very end
        sys.stderr.write("refold: interrupted\n")
        raise SystemExit(130) from None
    raise SystemExit  # not reached: main exits


def _have_streams() -> None:
    """Standard streams that can be used, whatever the process was started with.

    A closed one is opened on the null device: else the database would get its number, and take what is printed. What
    an encoding cannot say is printed escaped.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
