"""`refold init`, `refold migrate`, `refold completion`: making a store, and being at home in a shell."""

from __future__ import annotations

from typing import Any

import click

from refold import output
from refold.site import Site, common, shown_url
from refold_store.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_REFOLD_COMPLETE"
ROLES = ("writer", "reader", "keeper")


@click.command("init")
@common
def init_command(site: Site) -> None:
    """Make an empty store. A store that is there already is left as it is.

    SQLite only: on PostgreSQL `refold migrate` makes the tables.
    """
    from refold_store.store import open_store

    url = site.store_url
    if _is_postgres(url):
        raise click.UsageError("on PostgreSQL `refold migrate` makes the tables; `refold init` is for SQLite files")
    with open_store(url) as store:
        runs = len(store.runs())
    if site.as_json:
        output.document({"store": shown_url(url), "runs": runs})
    else:
        output.say(f"store {output.safe(shown_url(url))}: ready, {output.plural(runs, 'run')}")


@click.command("migrate")
@click.option(
    "--phase", type=click.Choice(["pre", "post"]), help="Only steps safe while older processes run, or the rest."
)
@click.option(
    "--roles", metavar="KIND=NAME,...", help=f"Give PostgreSQL roles their rights; kinds: {', '.join(ROLES)}."
)
@common
def migrate_command(site: Site, phase: str | None, roles: str | None) -> None:
    """Bring the store's tables up to date. Many may run it at once.

    SQLite files are also upgraded whenever they are opened for writing; phases and roles are PostgreSQL's.
    """
    from refold_store.migrate import migrate_postgres, postgres_roles
    from refold_store.revision import HEAD_REVISION
    from refold_store.store import open_store

    url, wanted = site.store_url, _roles(roles)
    if _is_postgres(url):
        applied = migrate_postgres(url, phase)
        if wanted:
            postgres_roles(url, **wanted)
    else:
        if phase or wanted:
            raise click.UsageError("--phase and --roles are for PostgreSQL; a SQLite file has neither")
        applied = []
        open_store(url).close()
    if site.as_json:
        output.document({"store": shown_url(url), "applied": applied, "revision": HEAD_REVISION, "roles": wanted})
        return
    if _is_postgres(url):
        output.say(f"applied {', '.join(applied)}" if applied else "nothing to apply")
        for kind, name in wanted.items():
            output.say(f"role {output.safe(name)}: rights of a {kind}")
    else:
        output.say(f"the file's tables are at revision {HEAD_REVISION}")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    In ~/.bashrc: eval "$(refold completion bash)". In ~/.zshrc: eval "$(refold completion zsh)". For fish: refold
    completion fish > ~/.config/fish/completions/refold.fish. Runs and keys are completed from REFOLD_STORE or --store.
    """
    from click.shell_completion import get_completion_class

    from refold.app import root

    kind: Any = get_completion_class(shell)
    assert kind is not None, "SHELLS lists click's"
    made = kind(root, {}, "refold", VARIABLE)
    output.say(made.source_template % made.source_vars())


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgres:", "postgresql:", "postgresql+psycopg:"))


def _roles(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        kind, mark, name = part.strip().partition("=")
        if not part.strip():
            continue
        if not mark or not name or kind not in ROLES:
            raise ConfigError(f"--roles {part.strip()!r}: write KIND=NAME with a kind of {', '.join(ROLES)}")
        if kind in found:
            raise ConfigError(f"--roles names two roles for {kind}; run it once for each")
        found[kind] = name
    return found
