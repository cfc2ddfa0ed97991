"""`leftfold console`: shows Apps, their log and their views in a browser."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Annotated

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, KafkaOption, RedisOption, examples
from leftfold.cli.run.serve import KEYS, is_loopback, keys_in
from leftfold.runtime.connect import connect, extras
from leftfold.runtime.console import note
from leftfold.runtime.project import Usage, find_project, load_apps

__all__ = ["EXAMPLES", "console"]

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
        from leftfold.http.console import Console, mount_console

    keys = keys_in(os.environ.get(KEYS, ""))
    if not keys and not is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and no API keys are set: make one with leftfold serve --new-key "
            f"NAME, and set {KEYS}"
        )
    apps = load_apps(app or [])
    named = [
        word for option, value in (("--kafka", kafka), ("--redis", _shown(redis))) if value for word in (option, value)
    ]
    project = find_project()
    locks = {spec: project.lock_of(one, spec) for spec, one in apps.items()}
    given = [*(f"--app={one}" for one in app or ()), *named]
    with ExitStack() as opened:
        connections = {a.name: opened.enter_context(connect(a, kafka=kafka, redis=redis)) for a in apps.values()}
        state = Console(
            apps, connections, (kafka, redis, archive), may_act=lambda principal: allow_acts, locks=locks, given=given
        )
        api = FastAPI(title="Leftfold console", openapi_url=None)
        here = () if keys else ("localhost", "127.0.0.1", "::1", host)
        mount_console(api, state, access=Access(keys), hosts=here)
        note(f"the console of {', '.join(one.name for one in apps.values())}: http://{host}:{port}")
        uvicorn.run(api, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_DRAIN_SECONDS)


def _shown(redis: str | None) -> str:
    """The address of Redis for the commands that pages show; one with a password is left out."""
    return "" if redis is None or "@" in redis else redis
