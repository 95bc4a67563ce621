"""Where a command works: the options every command takes, and the store and run they mean.

Rules of this module
- Looking opens the store read-only and never makes a file.
- The run is looked up before anything is said about it, so that a typing mistake ends with near names.
"""

from __future__ import annotations

import difflib
import functools
import getpass
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import click

from refold import exits
from refold.output import note
from refold_store.errors import UnknownKey
from refold_store.moments import version_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from refold_store.keys import Key
    from refold_store.run import Run
    from refold_store.store import Store

Function = TypeVar("Function", bound=Callable[..., Any])

STORE = "REFOLD_STORE"
NO_STORE = f"no store given: pass --store URL or set {STORE} (sqlite:///FILE or postgresql://USER@HOST/DATABASE)"
_USERINFO = re.compile(r"^(\w[\w+.-]*:/{0,2}[^:/]*):.*@", re.DOTALL)
_PARAMETER = re.compile(r"([?&\s][^=&?\s]*=)[^&]*")
_NEGATIVE = re.compile(r"-\.?[0-9]")
TENANTS = 8
"""Tenants that are named to somebody whose own has no runs."""
COMPLETIONS = 200
"""Runs or keys offered to a shell."""
_PLAIN = re.compile(r"(?!-)[\w@%+=:,./-]+")
"""Names a shell takes as they are: bash expands what is offered, `$(...)` included, when the line is run."""


class Missing(click.ClickException):
    """What was named is not in the store."""

    exit_code = exits.MISSING


@dataclass(frozen=True)
class Site:
    """The store, tenant and form of output a command was asked for."""

    url: str | None
    tenant: str
    as_json: bool

    @property
    def store_url(self) -> str:
        """The store's URL, or a usage error that names both ways to give one."""
        if not self.url:
            raise click.UsageError(NO_STORE)
        return self.url

    @contextmanager
    def store(self, schema: Any = None, *, read_only: bool = True, **options: Any) -> Iterator[Store]:
        """The store, open for the time of a block."""
        from refold_store.store import open_store

        options.setdefault("create", False)
        with open_store(self.store_url, schema, read_only=read_only, **options) as store:
            yield store

    @contextmanager
    def run(self, name: str, **options: Any) -> Iterator[Run]:
        """A run that exists. Raises NoSuchRun with near names."""
        with self.store(**options) as store:
            run = store.run(name, self.tenant)
            run.info()
            yield run


COUNT = click.IntRange(0, (1 << 63) - 1)
"""A whole number that a database takes."""


class Dashed(click.Command):
    """A command whose arguments may begin with a dash and a digit: `-5` is a value, `-20m` a moment, no options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(_NEGATIVE.match(word) for word in args):
            args = self._arguments_last(ctx, args)
        return super().parse_args(ctx, args)

    def _arguments_last(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The same command line with options first, then `--`, then the arguments."""
        takes_value = {
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        options: list[str] = []
        arguments: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                arguments += words
            elif word == "-" or not word.startswith("-") or _NEGATIVE.match(word):
                arguments.append(word)
            else:
                options += [word, *([next(words, "")] if word in takes_value else [])]
        return [*options, "--", *arguments]


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of all commands; the function gets them as a Site, first."""

    @click.option("--store", "url", envvar=STORE, metavar="URL", help=f"The store; else {STORE}.")
    @click.option("--tenant", default="default", show_default=True, help="Whose runs.")
    @click.option("--json", "as_json", is_flag=True, help="Exact JSON instead of text.")
    @functools.wraps(function)
    def call(url: str | None, tenant: str, as_json: bool, **rest: Any) -> Any:
        return function(Site(url, tenant, as_json), **rest)

    return call


def at_option(function: Function) -> Function:
    """`--at MOMENT`."""
    return click.option("--at", "moment", metavar="MOMENT", default="end", help="A moment; the newest by default.")(
        function
    )


def sensitive_option(function: Function) -> Function:
    """`--show-sensitive`."""
    return click.option("--show-sensitive", is_flag=True, help="Show the values of sensitive keys, too.")(function)


def declared_key(run: Run, key: str, version_option: str = "--at {key}@{version}") -> Key:
    """How a key is declared; an unknown one is told with near names of the schema and of the run.

    `version_option`: what takes the place of a version written behind the key.
    """
    try:
        return run.declared(key)
    except UnknownKey as error:
        near = [*error.near, *difflib.get_close_matches(key, run.keys(), 3, 0.5)]
        unknown = UnknownKey(key=key, near=list(dict.fromkeys(near)))
        meant = version_of(key)
        if meant is not None and (meant[0] in near or _is_declared(run, meant[0])):
            option = version_option.format(key=meant[0], version=meant[1])
            unknown = UnknownKey(key=key, hint=f"did you mean {meant[0]!r}? For a version: {option}")
        raise unknown from None


def _is_declared(run: Run, key: str) -> bool:
    try:
        run.declared(key)
    except UnknownKey:
        return False
    return True


def note_strangers(run: Run, names: Iterable[str]) -> None:
    """Remark which names are nobody's in a run: an empty answer about them may be a typing mistake."""
    from refold_replay.actors import known_names

    known = known_names(run)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            note(f"note: nobody named {name!r} in this run{hint}")


def exclude_each_other(**given: object) -> None:
    """Raises a usage error if more than one of some options is given; a parameter's name is that of its option."""
    options = [f"--{name}" for name, value in given.items() if value is not None and value is not False]
    if len(options) > 1:
        raise click.UsageError(f"{', '.join(options[:-1])} and {options[-1]} exclude each other")


class Name(click.types.StringParamType):
    """A name that is given: an empty one is a variable that was not set, though in Python it is a name."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.strip():
            self.fail("a name is expected, not an empty or blank one", param, ctx)
        return str(value)


NAME = Name()


def person_option(doing: str) -> Callable[[Function], Function]:
    """`--as NAME`: who does it."""
    return click.option("--as", "person", type=NAME, metavar="NAME", help=f"{doing}; the login name by default.")


def check_tenant(store: Store, tenant: str) -> None:
    """Raises Missing if a tenant has no run while others have: --tenant was forgotten or misspelt."""
    if store.runs(tenant, limit=1):
        return
    others = sorted({info.tenant for info in store.runs()})
    if not others:
        return
    near = difflib.get_close_matches(tenant, others, 3, 0.5)
    if near:
        hint = f"did you mean {', '.join(map(repr, near))}?"
    else:
        more = f" and {len(others) - TENANTS:,} more" if len(others) > TENANTS else ""
        hint = f"there are runs in {', '.join(map(repr, others[:TENANTS]))}{more}: say --tenant NAME"
    raise Missing(f"no runs in tenant {tenant!r}; {hint}")


def login_name() -> str:
    """The name of the person at the keyboard."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        return "unknown"


def shown_url(url: str) -> str:
    """A store's URL without its passwords. Of a misspelt one rather too much is masked than too little."""
    url = _USERINFO.sub(r"\1:***@", url)
    return _PARAMETER.sub(lambda found: f"{found[1]}***" if _is_secret(found[1]) else found[0], url)


def _is_secret(parameter: str) -> bool:
    name = unquote(parameter).lower()
    return any(word in name for word in ("password", "secret", "scram"))


# --- completion --------------------------------------------------------------------------------


def run_argument(function: Function) -> Function:
    """The argument RUN, completed from the store."""
    return click.argument("run_name", metavar="RUN", shell_complete=complete_runs)(function)


def key_argument(function: Function) -> Function:
    """The argument KEY, completed from the run."""
    return click.argument("key", metavar="KEY", shell_complete=complete_keys)(function)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Runs of the tenant that begin like this, the newest last."""
    return _complete(ctx, incomplete, lambda site, store: (info.name for info in store.runs(site.tenant)))


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Keys of the run that begin like this."""
    name = ctx.params.get("run_name")
    if not isinstance(name, str):
        return []
    return _complete(ctx, incomplete, lambda site, store: store.run(name, site.tenant).keys())


def _complete(ctx: click.Context, incomplete: str, names: Callable[[Site, Store], Any]) -> list[CompletionItem[Any]]:
    from click.shell_completion import CompletionItem

    site = Site(ctx.params.get("url"), ctx.params.get("tenant") or "default", False)
    try:
        with site.store() as store:
            found = [name for name in names(site, store) if name.startswith(incomplete) and _PLAIN.fullmatch(name)]
    except Exception:  # a shell asks: nothing to offer is the only answer it understands
        return []
    return [CompletionItem(name) for name in found[:COMPLETIONS]]
