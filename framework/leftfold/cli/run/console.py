"""`leftfold console`: shows Apps, their log and their views in a browser."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, KafkaOption, RedisOption, examples
from leftfold.cli.run.serve import KEYS, is_loopback, keys_in
from leftfold.runtime.connect import connect, extras
from leftfold.runtime.console import note
from leftfold.runtime.project import Usage, find_project, load_apps
from leftfold.runtime.servers import Servers

if TYPE_CHECKING:
    from leftfold.http.console import Console
    from leftfold.model.app import App
    from leftfold.runtime.connect import Connection

__all__ = ["EXAMPLES", "console", "console_of", "local_names"]

_DRAIN_SECONDS = 2
EXAMPLES = examples(
    "leftfold console",
    "leftfold console --allow-acts                    also rebuild, promote, resend and the like, after a question",
    "leftfold console --app shop.orders:app --app shop.stock:app --port 9000",
)


def console(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8090,
    allow_acts: Annotated[bool, typer.Option("--allow-acts", help="Let visitors act, and not only read.")] = False,
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
) -> None:
    """Show Apps, their log and their views in a browser until Ctrl-C.

    Beyond this machine it asks for API keys: LEFTFOLD_HTTP_KEYS holds NAME=HASH, with commas between; a browser sends a
    key as the password.
    """
    with extras():
        import uvicorn
        from fastapi import FastAPI

        from leftfold.http import Access
        from leftfold.http.console import mount_console

    keys = keys_in(os.environ.get(KEYS, ""))
    if not keys and not is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and no API keys are set: make one with leftfold serve --new-key "
            f"NAME, and set {KEYS}"
        )
    apps = load_apps(app or [])
    with ExitStack() as opened:
        connections = {a.name: opened.enter_context(connect(a, kafka=kafka, redis=redis)) for a in apps.values()}
        state = console_of(apps, connections, (kafka, redis, archive), allow_acts=allow_acts, specs=app or ())
        api = FastAPI(title="Leftfold console", openapi_url=None)
        mount_console(api, state, access=Access(keys), hosts=() if keys else local_names(host))
        note(f"the console of {', '.join(one.name for one in apps.values())}: http://{host}:{port}")
        uvicorn.run(api, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_DRAIN_SECONDS)


def console_of(
    apps: Mapping[str, App],
    connections: Mapping[str, Connection],
    servers: Servers,
    *,
    allow_acts: bool,
    specs: Sequence[str],
) -> Console:
    """The console of Apps on servers.

    Args:
        allow_acts: whether visitors may act. specs: the Apps that were named, for the commands that pages show.
    """
    from leftfold.http.console import Console

    project = find_project()
    locks = {spec: project.lock_of(one, spec) for spec, one in apps.items()}
    kafka, redis, _ = servers
    named = {"--kafka": kafka or "", "--redis": "" if redis is None or "@" in redis else redis}
    given = [f"--app={one}" for one in specs] + [f"{option}={value}" for option, value in named.items() if value]
    return Console(apps, connections, servers, may_act=lambda who: allow_acts, locks=locks, given=given)


def local_names(host: str) -> tuple[str, ...]:
    """The names under which a console without authentication answers."""
    return ("localhost", "127.0.0.1", "::1", host)
