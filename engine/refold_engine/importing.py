"""Dotted paths of a configuration file: importing what they name, beside the file too.

Rules of this module
- While a file is loaded, its folder stands first on the import path; afterwards the path is as it was.
- Modules of another file's folder that would stand in for this folder's (both have a `tools`) give way first. What
  was made from them keeps working: it holds its own module.
- The module is the user's: whatever it raises is one ConfigError.
"""

from __future__ import annotations

import importlib
import operator
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refold_store.errors import ConfigError

_loading = threading.RLock()
"""The import path is the process's: one load at a time."""


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Within: modules in this folder can be imported, before those of the same name elsewhere."""
    with _loading:
        here = str(folder.resolve())
        _give_way(here)
        importlib.invalidate_caches()
        before = list(sys.path)
        sys.path.insert(0, here)
        try:
            yield
        finally:
            sys.path[:] = before


def _give_way(here: str) -> None:
    """Forget modules left by a load from another folder where this folder has one of the same name."""
    roots = {str(Path(entry or ".").resolve()) for entry in sys.path}
    for name in {name.partition(".")[0] for name in sys.modules}:
        home = _home(sys.modules.get(name))
        if home is None or home == here or home in roots or not _provides(here, name):
            continue
        for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[one]


def _home(module: Any) -> str | None:
    """The folder a top-level module was found in."""
    if (paths := getattr(module, "__path__", None)) is not None:
        first = next(iter(paths), None)
        return None if first is None else str(Path(first).resolve().parent)
    file = getattr(module, "__file__", None)
    return None if file is None else str(Path(file).resolve().parent)


def _provides(folder: str, name: str) -> bool:
    return (Path(folder) / f"{name}.py").is_file() or (Path(folder) / name).is_dir()


def import_object(path: str) -> Any:
    """What `package.module.name` or `package.module:name` names. Raises ConfigError if it cannot be had."""
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module or not name:
        raise ConfigError(f"{path!r} is no dotted path: write package.module.name")
    found = import_module(module)
    try:
        return operator.attrgetter(name)(found)
    except AttributeError as error:
        raise ConfigError(f"{path!r} cannot be loaded: {error}") from error


def import_module(name: str) -> Any:
    """The module of this name. Raises ConfigError if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the module is the user's
        said = str(error) or type(error).__name__
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ConfigError(f"the module {name!r} cannot be imported: {kind}{said}") from error
