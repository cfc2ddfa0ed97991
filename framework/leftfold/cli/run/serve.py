"""`leftfold serve` and `leftfold console`: answer commands and reads over HTTP, and show Apps in a browser."""

from __future__ import annotations

import re
import resource
import secrets
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, KafkaOption, RedisOption, ScrapeOption, examples
from leftfold.cli.run.child_process import end_with_parent
from leftfold.errors import LeftfoldError
from leftfold.model.app import App
from leftfold.runtime.connect import Connection, connect, extras, open_archive
from leftfold.runtime.console import note, say
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import Usage, archive_of, find_project, load_apps
from leftfold.runtime.telemetry_export import TelemetrySettings, check_address, collected

if TYPE_CHECKING:
    from fastapi import FastAPI

    from leftfold.http import Access, GatewayServer
    from leftfold.runtime.servers import Servers

__all__ = ["CONSOLE_EXAMPLES", "SERVE_EXAMPLES", "console", "serve"]

SERVE_EXAMPLES = examples(
    "leftfold serve",
    "leftfold serve --port 9000 --origin https://shop.example      pages of that site may call",
    'LEFTFOLD_HTTP_KEYS="$(leftfold serve --new-key shop)" leftfold serve --host 0.0.0.0',
)


def serve(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port.")] = 8080,
    origin: Annotated[list[str] | None, typer.Option("--origin", metavar="URL", help="Pages that may call.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve others without API keys.")] = False,
    console: Annotated[bool, typer.Option("--console", help="Also show the console, at /console.")] = False,
    console_role: Annotated[str, typer.Option("--console-role", metavar="ROLE", help="Who may see the console.")] = "",
    allow_acts: Annotated[bool, typer.Option("--allow-acts", help="Let visitors of the console act.")] = False,
    acts_role: Annotated[str, typer.Option("--acts-role", metavar="ROLE", help="Which of them may act.")] = "",
    new_key: Annotated[
        str, typer.Option("--new-key", metavar="NAME", help="Print a new API key for NAME, and end.")
    ] = "",
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Serve /metrics for Prometheus, to those who may call.")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
) -> None:
    """Answer commands and reads over HTTP until Ctrl-C.

    The description of all routes is at /openapi.json, and readable at /docs. Beyond this machine callers need an API
    key (LEFTFOLD_HTTP_KEYS: NAME=HASH, with commas between), a token of an OpenID provider (LEFTFOLD_HTTP_ISSUER and
    LEFTFOLD_HTTP_AUDIENCE), or a certificate that a TLS proxy has checked (LEFTFOLD_HTTP_CERTIFICATE_HEADER).
    """
    with extras():
        from leftfold.http import GatewayServer, gateway
        from leftfold.http.access import is_loopback, local_names
        from leftfold.http.settings import HttpSettings

    if new_key:
        _show_new_key(new_key)
        return
    access = HttpSettings().access()
    if access.is_open and not insecure and not is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and callers need no credentials: make an API key with leftfold "
            f"serve --new-key NAME, set LEFTFOLD_HTTP_ISSUER, or serve everybody with --insecure"
        )
    if console:
        _check_visitors(access, host, port, (console_role, acts_role), allow_acts=allow_acts)
    apps = _load(app or [], is_silent=with_parent)
    with ExitStack() as opened:
        shown = opened.enter_context(collected("leftfold.gateway", "gateway", scraped=metrics))
        to: dict[str, Any] = {"kafka": kafka, "redis": redis, "archive": archive_of(archive)}
        open_archive(to["archive"])  # says at once that its extra is not installed
        connections = [(one, opened.enter_context(connect(one, **to))) for one in apps.values()]
        hosts = local_names(host) if access.is_open and not insecure else ()
        api = gateway(connections, access=access, origins=origin or (), metrics=shown if metrics else None, hosts=hosts)
        if console:
            named, roles = {one.name: connection for one, connection in connections}, (console_role, acts_role)
            servers = kafka, redis, archive
            scraped = TelemetrySettings().metrics
            _add_console(
                api, "/console", apps, named, servers, access, roles,
                allow_acts=allow_acts, specs=app, host=host, metrics=scraped,
            )  # fmt: skip
        if not with_parent:
            note(f"serving {', '.join(one.name for one in apps.values())} at {_url(host, port)} (routes: /docs)")
        server = GatewayServer(api, host=host, port=port, ws="auto" if console else "none")
        if with_parent:
            end_with_parent(lambda: server.handle_exit(signal.SIGTERM, None))
        _run(server)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _load(specs: list[str], *, is_silent: bool) -> Mapping[str, App]:
    """The Apps; beside a `leftfold run` that says what is wrong with them, this ends without a word."""
    try:
        return load_apps(specs)
    except LeftfoldError as error:
        if is_silent:
            raise typer.Exit(error.exit_code) from error
        raise


def _run(server: GatewayServer) -> None:
    """Runs a server with as many files as it may have: each connection is one, and a shell often allows 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # uvicorn raises the signal again when it has drained: connections are closed then, and that is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the terminal may close
        signal.signal(signal.SIGHUP, lambda *_: server.handle_exit(signal.SIGTERM, None))
    try:
        server.run()
    except SystemExit as error:
        if server.started or not error.code:
            raise
        raise typer.Exit(1) from error  # its log says why: uvicorn's own code means something else here


_NAME_OF_KEY = re.compile(r"[^,=:\s](?:[^,=:]*[^,=:\s])?(?::[^,=:+\s]+(?:\+[^,=:+\s]+)*)?")
"""A name as LEFTFOLD_HTTP_KEYS can hold it, with its roles behind it."""


def _show_new_key(name: str) -> None:
    """Prints a new API key to stderr, once, and its entry for the environment to stdout."""
    from leftfold.http import hash_of

    if not _NAME_OF_KEY.fullmatch(name):
        raise Usage(
            f"--new-key {name!r}: entries of LEFTFOLD_HTTP_KEYS are NAME=HASH or NAME:ROLE+ROLE=HASH with commas "
            f"between, so names and roles have no comma, = or : and no space at an end"
        )
    key = secrets.token_urlsafe(32)
    note(f"the key of {name}, which is not shown again: {key}")
    say(f"{name}={hash_of(key)}")


_DRAIN_SECONDS = 2
CONSOLE_EXAMPLES = examples(
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
    metrics: ScrapeOption = "",
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
        from fastapi import FastAPI

        from leftfold.http import GatewayServer
        from leftfold.http.gateway_server import RequestLimits
        from leftfold.http.settings import HttpSettings

    access = HttpSettings().access()
    _check_visitors(access, host, port, (role, acts_role), allow_acts=allow_acts)
    apps = load_apps(app or [])
    if metrics:
        check_address(metrics)
    with ExitStack() as opened:
        to: dict[str, Any] = {"kafka": kafka, "redis": redis, "archive": archive_of(archive)}
        open_archive(to["archive"])  # says at once that its extra is not installed
        connections = {one.name: opened.enter_context(connect(one, **to)) for one in apps.values()}
        servers, roles = (kafka, redis, archive), (role, acts_role)
        api = FastAPI(title="Leftfold console", openapi_url=None)
        _add_console(
            api, "/", apps, connections, servers, access, roles,
            allow_acts=allow_acts, specs=app, host=host, metrics=metrics,
        )  # fmt: skip
        api.add_middleware(RequestLimits, access=access)
        note(f"the console of {', '.join(one.name for one in apps.values())}: {_url(host, port)}")
        _run(GatewayServer(api, host=host, port=port, ws="auto", timeout_graceful_shutdown=_DRAIN_SECONDS))


def command_line(words: Sequence[str], app: str, *, apps: Mapping[str, str], options: Mapping[str, str]) -> str:
    """The command line of some words for an App ('' = all), with the options that the command has of those given.

    Args:
        words: behind a `--`, what comes from data and may look like an option.
        apps: the `module:name` of Apps by name, where they were named.
    """
    from leftfold.cli.main import app as main_app

    command: Any = typer.main.get_command(main_app)  # it bundles its own copy of click
    count = 0
    while hasattr(command, "get_command") and count < len(words):
        inner = command.make_context("", [], resilient_parsing=True)
        command, count = command.get_command(inner, words[count]), count + 1
    known: dict[str, Any] = {name: one for one in command.params for name in one.opts if name.startswith("-")}
    end = words.index("--") if "--" in words else len(words)
    rest, arguments, chosen = list(words[count:end]), list[str](), list[str]()
    while rest:
        word = rest.pop(0)
        if (option := known.get(word)) is None or not (option.is_flag or rest):
            arguments.append(word)
        else:
            chosen += [word] if option.is_flag else [word, rest.pop(0)]
    if (named := known.get("--app")) is not None and apps:
        wanted = [apps[app]] if app in apps else list(apps.values()) if named.multiple else list(apps.values())[:1]
        chosen += [f"--app={spec}" for spec in wanted]
    chosen += [f"{name}={value}" for name, value in options.items() if name in known]
    arguments += words[end + 1 :]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join(["leftfold", *words[:count], *chosen, "--", *arguments])
    return shlex.join(["leftfold", *words[:count], *arguments, *chosen])


def _check_visitors(access: Access, host: str, port: int, roles: tuple[str, str], *, allow_acts: bool) -> None:
    """Checks that a browser can show a console, that it is seen by those alone who are meant, and who may act.

    Raises:
        Usage: it is not so.
    """
    from leftfold.http.access import REFUSED_PORTS, Access, is_loopback

    looking, acting = roles
    if port in REFUSED_PORTS:
        other = next(one for one in range(port + 100, port + 200) if one not in REFUSED_PORTS)
        raise Usage(f"--port {port}: browsers open no page at this port, which another protocol has; try {other}")
    if access.is_open and not is_loopback(host):
        raise Usage(
            f"--host {host} can be reached by others, and visitors of the console need no credentials: make an API key "
            f"with leftfold serve --new-key NAME, and set LEFTFOLD_HTTP_KEYS"
        )
    if (looking or acting) and access.is_open:
        raise Usage("a role needs visitors that say who they are; make an API key: leftfold serve --new-key NAME")
    if access.authorize is not Access().authorize and not looking:
        raise Usage(
            "the console shows everything, and LEFTFOLD_HTTP_AUTHORIZE is not asked for its pages; name the role of "
            "those who may look: --role ROLE, or --console-role ROLE of leftfold serve"
        )
    if allow_acts and not acting and not access.is_open:
        raise Usage(
            "with --allow-acts every caller with a key could act, a web shop's as well; name the role of those who "
            "may: --acts-role ROLE, and make their keys with leftfold serve --new-key NAME:ROLE"
        )


def _add_console(
    api: FastAPI,
    path: str,
    apps: Mapping[str, App],
    connections: Mapping[str, Connection],
    servers: Servers,
    access: Access,
    roles: tuple[str, str],
    *,
    allow_acts: bool,
    specs: Sequence[str] | None,
    host: str,
    metrics: str,
) -> None:
    """Adds the console of Apps to an application, at a path.

    Args:
        access: who visitors are. roles: which role may look, and which may act; '' = every visitor.
        allow_acts: whether visitors may act at all. specs: the Apps that were named, for the commands on pages.
        host: where it listens. metrics: where `leftfold run --metrics` answers.
    """
    with extras():
        from leftfold.http.access import local_names
        from leftfold.http.console import Console, mount_console

    looking, acting = roles
    project = find_project()
    locks = {spec: project.lock_of(one, spec, is_alone=len(apps) == 1) for spec, one in apps.items()}
    kafka, redis, archive = servers
    # A login in a URL is on no page: who copies the line puts in their own.
    hidden = "REDIS_URL" if redis is not None and "@" in redis else redis
    named = {"--kafka": kafka, "--redis": hidden, "--archive": archive}
    line = partial(
        command_line,
        apps={one.name: spec for spec, one in apps.items()} if specs or len(apps) > 1 else {},
        options={option: value for option, value in named.items() if value},
    )
    state = Console(
        apps, connections, servers, locks=locks, shell=line, metrics=metrics,
        may_look=lambda who: not looking or looking in who.roles,
        may_act=lambda who: allow_acts and (not acting or acting in who.roles),
    )  # fmt: skip
    mount_console(api, state, path, access=access, hosts=local_names(host) if access.is_open else ())
    open_report("console")  # for errors of pages that were not foreseen
