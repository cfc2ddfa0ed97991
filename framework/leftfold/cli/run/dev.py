"""`leftfold dev`, `up` and `down`: run embedded servers and the App, restarted whenever a source file changes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from leftfold import local
from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, LogsOption, RedisOption, examples
from leftfold.cli.run.child_process import handover
from leftfold.errors import InfrastructureError, LeftfoldError
from leftfold.local.files import is_held
from leftfold.local.settings import is_free
from leftfold.ports.protocols import Report
from leftfold.runtime.console import emit, note, pairs, say
from leftfold.runtime.discovery import Environment
from leftfold.runtime.lifecycle import Stopping
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import find_project, local_settings, servers_to_start
from leftfold.runtime.supervisor import Backoff, Part, PartProcess, end_processes
from leftfold.safety import veiled

__all__ = ["changes", "kept_up", "scan"]


DEV_EXAMPLES = examples(
    "leftfold dev",
    "leftfold send AddItem '{...}'     in a second terminal",
    "leftfold dev --app shop.orders:app --app shop.stock:app     Apps that react to each other",
)


def dev(
    app: AppsOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port of gateway and console; 0 = neither.")
    ] = 8080,
    json_logs: LogsOption = None,
) -> None:
    """Start servers, run the App or several with gateway and console, reload on change.

    Ctrl-C stops everything that this command started. A server of its own that dies is started again. Servers that
    already run are used and left alone. The command needs a project, or --app with the App of this directory. Gateway
    and console need the extras http and console; when the port is taken, they have the next one that is free.
    """
    project = find_project()
    if not app:
        project.require()
    report, stopping = open_report("dev", as_json=json_logs), Stopping()
    environment = handover(kafka=kafka, redis=redis)
    try:
        with _servers(kafka, redis, report, stopping.event, shown=sys.stderr.isatty() and not json_logs):
            if not stopping.event.is_set():
                logs = {True: ["--json-logs"], False: ["--plain-logs"], None: []}[json_logs]
                apps = [f"--app={one}" for one in app or ()]
                commands = [["run", *logs, *apps]]
                if port and (served := _gateway(port, report)):
                    commands.append([*served, *apps])
                Reloading(project.root, commands, environment, stop=stopping.event, report=report).run()
    except LeftfoldError:
        # Ctrl-C at a terminal reaches every process started there, so what it ended has not failed. Its error may be
        # here before a thread has set the event.
        if not stopping.is_signalled:
            raise
    report("stopped", {})
    raise typer.Exit(stopping.code)


def _gateway(port: int, report: Report) -> list[str]:
    """The command that serves gateway and console, whose addresses are reported; empty when they are not installed."""
    has_console = find_spec("nicegui") is not None
    if find_spec("fastapi") is None:
        return []
    from leftfold.http.access import REFUSED_PORTS
    from leftfold.http.settings import HttpSettings

    found = HttpSettings()
    if has_console and (found.keys or found.issuer or found.certificate_header or found.authorize):
        has_console = False
        report("no console", {"why": "LEFTFOLD_HTTP_... limit who may call; try: leftfold serve --console --help"})
    last = min(port + _PORTS, 1 << 16)
    free = next((one for one in range(port, last) if one not in REFUSED_PORTS and is_free(one)), 0)
    if not free:
        report("no free port for the gateway", {"from": port, "to": last - 1})
        return []
    url = f"http://127.0.0.1:{free}"
    report("gateway", {"routes": f"{url}/docs", **({"console": f"{url}/console"} if has_console else {})})
    return ["serve", f"--port={free}", *(["--console", "--allow-acts"] if has_console else [])]


def _servers(
    kafka: str | None, redis: str | None, report: Report, stop: threading.Event, *, shown: bool
) -> AbstractContextManager[object]:
    """Embedded servers that are neither configured nor running, while the block runs; `shown` = a progress line."""
    want, settings = servers_to_start(kafka, redis), local_settings()
    if not want:
        return nullcontext()
    if local.status(settings.data).keeper is not None:
        # The command that started them may have wanted one of them only, and one may have died.
        servers = local.up(settings, want=want)
        report("servers were there", {"kafka": servers.kafka, "redis": veiled(servers.redis)})
        return nullcontext()
    report("starting servers", {"data": str(settings.data)})
    progress = None if shown else _reported(report)
    embedded = local.embedded(settings.data, settings=settings, want=want, progress=progress)
    return kept_up(embedded, settings.data, report, stop)


def _reported(report: Report) -> Callable[[str], None]:
    """A progress callback that logs each piece of work once."""
    logged: set[str] = set()

    def progress(line: str) -> None:
        work = line.partition(" ... ")[0]
        if work not in logged:
            logged.add(work)
            report(work, {})

    return progress


DOWN_EXAMPLES = examples("leftfold down", "rm -r .leftfold      afterwards, to delete the data as well")


def down(as_json: JsonOption = False) -> None:
    """Stop what `leftfold up` started; data stays."""
    settings = local_settings()
    stopped = local.down(settings.data, settings=settings)
    if as_json:
        emit({"stopped": stopped, "data": str(settings.data)})
    else:
        say(f"stopped; the data stays in {settings.data}" if stopped else f"nothing runs in {settings.data}")


UP_EXAMPLES = examples(
    "leftfold up",
    "LEFTFOLD_DATA=/var/tmp/play leftfold up     another data directory",
    "leftfold up --secure                        with logins, ACLs and TLS, as in production",
)


def up(
    secure: Annotated[bool, typer.Option("--secure", help="With logins, ACLs and TLS, from now on.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start Kafka and Redis on this machine.

    They keep running after this command ends. They keep their data and ports in .leftfold beside pyproject.toml, and
    every command finds them there; outside a project LEFTFOLD_DATA must name the directory. The first start downloads
    Kafka. Servers whose address is configured are not started.

    With --secure they accept TLS only, and have a user for each part of a service, whose environment is in
    .leftfold/secure/PART.env. Commands typed here log in as admin, who may do everything; the others may do in Kafka
    what `leftfold topics acl --apply` grants them. The data directory stays so until you delete .leftfold/secure.
    """
    want = servers_to_start()
    if not want:
        return
    if Environment().data is None:
        find_project().require()
    settings = local_settings()
    if secure:
        settings = settings.model_copy(update={"secure": True})
    servers = local.up(settings, want=want)
    fields = {"kafka": servers.kafka, "redis": veiled(servers.redis), "data": str(servers.data)}
    if as_json:
        emit(fields)
        return
    pairs({name: value for name, value in fields.items() if value})
    if servers.kafka_login:
        note(f"logins: {servers.data / 'secure'}/PART.env; rights in Kafka: leftfold topics acl --apply")
    note("next: leftfold run, leftfold status; stop them with: leftfold down")


_CHECK_SECONDS = 0.5


@contextmanager
def kept_up(
    servers: AbstractContextManager[object], data: Path, report: Report, stop: threading.Event
) -> Iterator[None]:
    """Runs embedded servers while the block runs, restarts one that ends early, and reports that.

    Args:
        stop: set when their keeper has ended, since nothing can start them again.

    Raises:
        InfrastructureError: their keeper ended before the block did.
    """
    over, lost = threading.Event(), threading.Event()

    def watch() -> None:
        if _watch(data, over, report):
            lost.set()
            stop.set()

    with servers:
        threading.Thread(target=watch, name="servers", daemon=True).start()
        try:
            yield
        finally:
            over.set()
    if lost.is_set():
        raise InfrastructureError(
            f"the servers in {data} have ended, since it was deleted or moved, or their keeper was killed; "
            f"start them again: leftfold dev"
        )


def _watch(data: Path, over: threading.Event, report: Report) -> bool:
    """Restarts servers until the block is over, or their keeper has ended; returns whether it has."""
    backoff = Backoff()
    while not over.wait(_CHECK_SECONDS):
        try:
            for name, why in local.ended(data).items():
                report("restarting a server", {"server": name, "why": why})
                local.restart(data, name)
                report("server started again", {"server": name})
            if not is_held(data.resolve() / "keeper.lock") and not over.is_set():
                report("servers ended", {"data": str(data)})
                return True
        except (LeftfoldError, OSError) as error:
            if not over.is_set():
                report("server does not start", {"why": str(error)})
                over.wait(backoff.pause(0.0))
    return False


FileTimes: TypeAlias = Mapping[str, tuple[int, int]]
_SKIPPED = frozenset({"__pycache__", "node_modules", "tests", "build", "dist"})


def scan(root: Path) -> FileTimes:
    """Every Python file and pyproject.toml below a directory, with modification time and size.

    Hidden directories, virtual environments and tests are left out.
    """
    seen: dict[str, tuple[int, int]] = {}
    for place, directories, files in os.walk(root):
        directories[:] = [d for d in directories if not d.startswith(".") and d not in _SKIPPED]
        if "pyvenv.cfg" in files:
            directories.clear()
            continue
        for name in files:
            if name.endswith(".py") or name == "pyproject.toml":
                path = Path(place, name)
                try:
                    status = path.stat()
                except OSError:
                    continue
                seen[str(path.relative_to(root))] = status.st_mtime_ns, status.st_size
    return seen


def changes(before: FileTimes, after: FileTimes) -> list[str]:
    """Files that were added, removed or changed, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


_TICK = 0.05
_SCAN_SECONDS = 0.3
_GRACE = 20.0
_PORTS = 20


class Reloading:
    """Runs commands and restarts them when a file changes; after a failure one waits for the next change.

    Args:
        root: the directory whose Python files are watched. commands: `leftfold run` and others, with their arguments.
        environment: what they have beside that of this process.
    """

    def __init__(
        self,
        root: Path,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        *,
        stop: threading.Event,
        report: Report,
    ) -> None:
        self._root, self._stop, self._report = root, stop, report
        self._children = [
            PartProcess(Part(words[0], (sys.executable, "-m", "leftfold.cli", *words, "--with-parent"), environment))
            for words in commands
        ]

    def run(self) -> None:
        """Runs until `stop` is set."""
        seen, looked = scan(self._root), time.monotonic()
        try:
            self._start()
            while not self._stop.wait(_TICK):
                self._look_after()
                if time.monotonic() - looked < _SCAN_SECONDS:
                    continue
                now, looked = scan(self._root), time.monotonic()
                if changed := changes(seen, now):
                    self._report("reloading", {"changed": ", ".join(changed[:3]) + (", …" if changed[3:] else "")})
                    end_processes(self._children, _GRACE)
                    self._start()
                seen = now
        finally:
            end_processes(self._children, _GRACE)

    def _start(self) -> None:
        for child in self._children:
            try:
                child.start()
            except OSError as error:  # no process can be made at present; the next change tries again
                self._report("not started", {"command": child.part.name, "why": str(error)})

    def _look_after(self) -> None:
        for child in self._children:
            if (code := child.ended()) is not None and not self._stop.is_set():
                self._report("waiting for a change", {"command": child.part.name, "exit": code})
