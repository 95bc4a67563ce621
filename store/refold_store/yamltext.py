"""Reading YAML with the place of everything: no duplicate keys, no objects, bounded.

Rules
- The result is plain data. Each path has the line it stands on. Duplicate keys and keys that are not text are errors.
- An alias stands for a copy; recursion and documents that unfold beyond `MAX_NODES` are errors.
"""

from __future__ import annotations

from typing import Any

import yaml

from refold_store.errors import ConfigError

MAX_NODES = 200_000
"""Nodes one document may unfold to: far beyond any schema, and a bound on alias bombs."""

MAX_DEPTH = 100
"""Deepest nesting, in levels."""

Path = tuple[str, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Document:
    """A value, the name of its source, and the line of each path in it."""

    __slots__ = ("lines", "source", "value")

    def __init__(self, value: Any, source: str, lines: dict[Path, int]) -> None:
        self.value = value
        self.source = source
        self.lines = lines

    def place(self, path: Path) -> str:
        """`file:line: path`, by the nearest path that has a line."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known)
        source = self.source if line is None else f"{self.source}:{line}"
        return f"{source}: {'.'.join(path)}" if path else source


class _Reader:
    def __init__(self, loader: Any, source: str) -> None:
        self.loader = loader
        self.lines: dict[Path, int] = {}
        self.source = source
        self.left = MAX_NODES

    def read(self, node: Any, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.left -= 1
        if self.left < 0 or len(path) > MAX_DEPTH:
            raise self.error("the document is too large or nested too deep (an alias that holds itself?)", node, path)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(inner, (*path, str(index))) for index, inner in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except yaml.YAMLError as error:
            raise self.error(str(getattr(error, "problem", error)), node, path) from error
        except (ValueError, KeyError, AttributeError, IndexError) as error:  # PyYAML's constructors check little
            kind = node.tag.rpartition(":")[2]
            raise self.error(f"{node.value[:40]!r} is no {kind}; quote it if it is text", node, path) from error

    def mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name_node, inner in node.value:
            name = self.read(name_node, (*path, str(getattr(name_node, "value", "?"))))
            if not isinstance(name, str):
                raise self.error(f"the key {name_node.value!r} reads as {name!r}: quote it", name_node, path)
            if name in found:
                raise self.error(f"the key {name!r} is given twice", name_node, (*path, name))
            self.lines[(*path, name)] = name_node.start_mark.line + 1
            found[name] = self.read(inner, (*path, name))
        return found

    def error(self, message: str, node: Any, path: Path) -> ConfigError:
        where = f"{self.source}:{node.start_mark.line + 1}"
        return ConfigError(message, where=f"{where}: {'.'.join(path)}" if path else where)


def read_yaml(text: str, source: str) -> Document:
    """The one document in a YAML text. Raises ConfigError with file and line."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise ConfigError("the file is empty", where=source)
        reader = _Reader(loader, source)
        return Document(reader.read(node, ()), source, reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"not YAML: {error.problem or error.context}", where=where) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", where=source) from error
    finally:
        loader.dispose()
