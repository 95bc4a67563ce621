"""`refold get`: the whole on-call answer about one key on one screen.

Rules of this module
- The look itself is a read, on the record as the person's, unless the store cannot be written or --no-record was
  given; the answer says which.
- Absent and deleted are told apart: "never written" is version 0, a delete is a version.
- Readers are told from the log as it was before this look.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from refold import output
from refold.records import read_record, shown_value, time_of, value_record
from refold.site import Site, at_option, common, key_argument, login_name, run_argument, sensitive_option
from refold_store.errors import ReadOnlyStore, StoreUnavailable, UnknownKey

if TYPE_CHECKING:
    from refold_store.reads import Read, ReadRecord
    from refold_store.run import Run

LISTED = 5
"""Readers, and later versions, listed on the screen; `readers` and `history` list all."""


@dataclass
class Answer:
    """What `get` found out."""

    run: Run
    read: Read
    moment: str
    warning: str | None
    readers: list[ReadRecord]
    newer: list[Read]
    previous: Read | None
    recorded_as: str | None
    not_recorded: str | None
    now_us: int

    @property
    def of_version(self) -> list[ReadRecord]:
        """Reads of this version."""
        return [one for one in self.readers if one.version == self.read.version]

    @property
    def of_older(self) -> list[ReadRecord]:
        """The newest read of each reader who saw older versions only."""
        newest = {one.reader: one for one in sorted(self.readers, key=lambda one: (one.version, one.seq))}
        return sorted((one for one in newest.values() if one.version < self.read.version), key=lambda one: one.seq)


@click.command("get")
@run_argument
@key_argument
@at_option
@click.option("--as", "person", metavar="NAME", help="Who looks; the login name by default.")
@click.option("--no-record", is_flag=True, help="Leave no read event.")
@sensitive_option
@common
def get_command(
    site: Site, run_name: str, key: str, moment: str, person: str | None, no_record: bool, show_sensitive: bool
) -> None:
    """Show KEY of RUN: its value and everything around it.

    The look is recorded as a read of yours (--as); it says so if it is not.
    """
    name = login_name() if person is None else person
    answer = _look(site, run_name, key, moment, name, no_record)
    if answer.warning:
        output.note(f"warning: {answer.warning}")
    if site.as_json:
        output.document(answer)
    else:
        for line in answer:
            output.say(line)


def _look(site: Site, run_name: str, key: str, moment: str, person: str, no_record: bool) -> Any:
    """Look with a record if it can be made, else without one and with the reason."""
    raise NotImplementedError
