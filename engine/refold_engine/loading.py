"""Loading a configuration: from a YAML file to what the engine runs on.

Rules of this module
- A file loads, or all its mistakes are told at once, each with file, line and path.
- Dotted paths are imported while loading, with the file's folder first on the import path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from refold_engine.compiling import compile_file
from refold_engine.config import Config
from refold_engine.configfile import read_file
from refold_engine.findings import Finding, Findings
from refold_engine.importing import beside
from refold_store.errors import ConfigError
from refold_store.yamltext import Document, read_yaml

FILE_MAX_BYTES = 4 << 20
"""Longest configuration file in bytes."""


class Loaded(NamedTuple):
    """What became of a file: everything found, and the configuration; with errors, only what is right in it."""

    config: Config | None
    findings: tuple[Finding, ...]
    document: Document | None


def load(path: str | os.PathLike[str]) -> Config:
    """The configuration in a file, ready to run. Raises ConfigError that tells every mistake, one a line."""
    loaded = read(path)
    errors = [one for one in loaded.findings if one.severity == "error"]
    if loaded.config is not None and not errors:
        return loaded.config
    if len(errors) == 1:
        raise ConfigError(str(errors[0]))
    raise ConfigError("\n".join([f"{len(errors)} mistakes in {os.fspath(path)}:", *map(str, errors)]))


def read(path: str | os.PathLike[str]) -> Loaded:
    """The same with the findings as data. Raises nothing for what is wrong in the file."""
    source = os.fspath(path)
    try:
        document = read_yaml(_text(source), source)
    except ConfigError as error:
        return Loaded(None, (_as_finding(error, source),), None)
    findings = Findings(document)
    file = read_file(document, findings)
    if file is None:
        return Loaded(None, findings.all, document)
    folder = Path(source).resolve().parent
    with beside(folder):
        config = compile_file(document, file, folder, findings)
    return Loaded(config, findings.all, document)


def _text(source: str) -> str:
    try:
        with open(source, "rb") as stream:
            raw = stream.read(FILE_MAX_BYTES + 1)
        if len(raw) > FILE_MAX_BYTES:
            raise ConfigError(f"the file is over {FILE_MAX_BYTES} bytes", where=source)
        return raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"the file cannot be read: {reason}", where=source) from error


def _as_finding(error: ConfigError, source: str) -> Finding:
    """An error of the reader as a finding: `file:line: path` taken apart."""
    where = error.where or source
    message = str(error).removeprefix(f"{where}: ")
    place, _, path = where.removeprefix(source).removeprefix(":").partition(": ")
    return Finding(source, int(place) if place.isdecimal() else 0, path, message)
