"""`leftfold serve`: answers commands and reads of Apps over HTTP."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated

import typer

from leftfold.cli.options import AppsOption, KafkaOption, RedisOption, examples
from leftfold.runtime.connect import connect, extras
from leftfold.runtime.console import note
from leftfold.runtime.project import Usage, load_apps
from leftfold.runtime.telemetry import collected

__all__ = ["EXAMPLES", "keys_in", "serve"]

KEYS = "LEFTFOLD_HTTP_KEYS"
_DRAIN_SECONDS = 10
EXAMPLES = examples(
    "leftfold serve",
    "leftfold serve --port 9000 --origin https://shop.example      pages of that site may call",
    f'{KEYS}="$(leftfold serve --new-key shop)" leftfold serve --host 0.0.0.0',
)


def serve(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8080,
    origin: Annotated[list[str] | None, typer.Option("--origin", metavar="URL", help="Pages that may call.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve others without API keys.")] = False,
    new_key: Annotated[
        str, typer.Option("--new-key", metavar="NAME", help="Print a new API key for NAME, and end.")
    ] = "",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve /metrics for Prometheus, to those who may call.")
    ] = False,
    app: AppsOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
) -> None:
    """Answer commands and reads over HTTP until Ctrl-C.

    The description of all routes is at /openapi.json, and readable at /docs. Beyond this machine it asks for API keys:
    LEFTFOLD_HTTP_KEYS holds NAME=HASH, with commas between.
    """
    with extras():
        import uvicorn

        from leftfold.http import Access, gateway

    if new_key:
        _show_new_key(new_key)
        return
    keys = keys_in(os.environ.get(KEYS, ""))
    if not keys and not insecure and not _is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and no API keys are set: make one with leftfold serve --new-key "
            f"NAME, or serve everybody with --insecure"
        )
    apps = load_apps(app or [])
    with ExitStack() as opened:
        shown = opened.enter_context(collected("leftfold.gateway", "gateway", scraped=metrics))
        connections = [(one, opened.enter_context(connect(one, kafka=kafka, redis=redis))) for one in apps.values()]
        api = gateway(connections, access=Access(keys), origins=origin or (), metrics=shown if metrics else None)
        note(f"serving {', '.join(one.name for one in apps.values())} at http://{host}:{port} (routes: /docs)")
        uvicorn.run(api, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_DRAIN_SECONDS)


def keys_in(text: str) -> Mapping[str, str]:
    """The names of callers by the hashes of their API keys, from `NAME=HASH,NAME=HASH`.

    Raises:
        Usage: the text has another form.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, digest = part.partition("=")
        if not name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise Usage(f"{KEYS} holds NAME=HASH with commas between; one of {name[:40]!r} is no hash of 64 hex digits")
        found[digest] = name
    return found


def _show_new_key(name: str) -> None:
    """Prints a new API key to stderr, once, and its entry for the environment to stdout."""
    import secrets

    from leftfold.http import hash_of
    from leftfold.runtime.console import say

    key = secrets.token_urlsafe(32)
    note(f"the key of {name}, which is not shown again: {key}")
    say(f"{name}={hash_of(key)}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
