"""`leftfold console`: shows Apps, their log and their views in a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, KafkaOption, RedisOption, examples
from leftfold.model.app import App
from leftfold.runtime.connect import Connection, connect, extras
from leftfold.runtime.console import note
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import Usage, find_project, load_apps
from leftfold.runtime.servers import Servers

if TYPE_CHECKING:
    from leftfold.http import Access
    from leftfold.http.console import Console
__all__ = ["EXAMPLES", "console", "console_of"]

_DRAIN_SECONDS = 2
EXAMPLES = examples(
    "leftfold console",
    "leftfold console --allow-acts                    also rebuild, promote, resend and the like, after a question",
    "leftfold console --app shop.orders:app --app shop.stock:app --port 9000",
)


def console(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8090,
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="Only visitors with this role may look.")] = "",
    allow_acts: Annotated[bool, typer.Option("--allow-acts", help="Let visitors act, and not only read.")] = False,
    acts_role: Annotated[str, typer.Option("--acts-role", metavar="ROLE", help="Only those with it may act.")] = "",
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
) -> None:
    """Show Apps, their log and their views in a browser until Ctrl-C.

    Beyond this machine visitors say who they are as callers of `leftfold serve` do: a browser sends an API key
    (LEFTFOLD_HTTP_KEYS) as the password, and a TLS proxy a token or a certificate.
    """
    with extras():
        import uvicorn
        from fastapi import FastAPI

        from leftfold.http.access import is_loopback, local_names
        from leftfold.http.console import mount_console
        from leftfold.http.settings import HttpSettings

    access = HttpSettings().access()
    if access.is_open and not is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and visitors need no credentials: make an API key with leftfold "
            f"serve --new-key NAME, and set LEFTFOLD_HTTP_KEYS"
        )
    apps = load_apps(app or [])
    with ExitStack() as opened:
        connections = {a.name: opened.enter_context(connect(a, kafka=kafka, redis=redis)) for a in apps.values()}
        servers, roles = (kafka, redis, archive), (role, acts_role)
        state = console_of(apps, connections, servers, access, roles, allow_acts=allow_acts, specs=app or ())
        api = FastAPI(title="Leftfold console", openapi_url=None)
        mount_console(api, state, access=access, hosts=local_names(host) if access.is_open else ())
        open_report("console")  # for errors of pages that were not foreseen
        note(f"the console of {', '.join(one.name for one in apps.values())}: http://{host}:{port}")
        uvicorn.run(api, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_DRAIN_SECONDS)


def console_of(
    apps: Mapping[str, App],
    connections: Mapping[str, Connection],
    servers: Servers,
    access: Access,
    roles: tuple[str, str],
    *,
    allow_acts: bool,
    specs: Sequence[str],
) -> Console:
    """The console of Apps on servers.

    Args:
        access: who visitors are. roles: which role may look, and which may act; '' = every visitor.
        allow_acts: whether visitors may act at all. specs: the Apps that were named, for the commands on pages.

    Raises:
        Usage: a role is named, and visitors need not say who they are; or `access` has rules of its own, which pages
            do not ask, and no role is named.
    """
    from leftfold.http import Access
    from leftfold.http.console import Console

    looking, acting = roles
    if (looking or acting) and access.is_open:
        raise Usage("a role needs visitors that say who they are; make an API key: leftfold serve --new-key NAME")
    if access.authorize is not Access().authorize and not looking:
        raise Usage(
            "the console shows everything, and LEFTFOLD_HTTP_AUTHORIZE is not asked for its pages; name the role of "
            "those who may look: --role ROLE, or --console-role ROLE of leftfold serve"
        )
    project = find_project()
    locks = {spec: project.lock_of(one, spec) for spec, one in apps.items()}
    kafka, redis, _ = servers
    named = {"--kafka": kafka or "", "--redis": "" if redis is None or "@" in redis else redis}
    given = [f"--app={one}" for one in specs] + [f"{option}={value}" for option, value in named.items() if value]
    return Console(
        apps, connections, servers, locks=locks, given=given,
        may_look=lambda who: not looking or looking in who.roles,
        may_act=lambda who: allow_acts and (not acting or acting in who.roles),
    )  # fmt: skip
