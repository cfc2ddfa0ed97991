"""Starts, watches and stops the embedded servers of one data directory."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local import keeper
from leftfold.local.files import Progress, StderrProgress, held, tail
from leftfold.local.kafka import coordinates, plan_kafka
from leftfold.local.launch import (
    KeeperRecord,
    ServerPlan,
    ServerRecord,
    Servers,
    announce,
    end_keeper,
    read_record,
    start_keeper,
    stop_keeper,
    wait_answer,
    write_plan,
)
from leftfold.local.redis import answers_ping, plan_redis, plan_redis_tls
from leftfold.local.secure import Secure, make_secure, secured
from leftfold.local.settings import LocalSettings, is_open
from leftfold.safety import is_foreign, veiled

__all__ = ["ALL", "PROBES", "ServerStatus", "Status", "down", "embedded", "ended", "kill", "restart", "status", "up"]


Probe = Callable[[str, float], bool]
"""Checks, within a number of seconds, whether the server at an address is ready for work."""

_FIRST_PROBE_SECONDS = 0.2
_LAST_PROBE_SECONDS = 5.0
_POLL_SECONDS = 0.02


def wait_ready(data: Path, name: str, probe: Probe, seconds: float) -> str:
    """Wait until the probe finds a server ready and return its address.

    Raises:
        InfrastructureError: it ended, or took longer; the message shows the end of its log.
    """
    deadline = time.monotonic() + seconds
    # Short at first: a client that connects too early waits longer before its next attempt than a new one needs.
    patience = _FIRST_PROBE_SECONDS
    while True:
        server = _server(data, name)
        if server.exit is not None:
            raise InfrastructureError(f"the embedded {name} ended with {server.exit} at its start: {cause(server)}")
        started = time.monotonic()
        if probe(server.address, patience):
            return server.address
        if time.monotonic() - started >= patience:
            patience = min(2 * patience, _LAST_PROBE_SECONDS)
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the embedded {name} at {veiled(server.address)} is not ready after {seconds:.0f} s: {cause(server)}"
            )
        time.sleep(_POLL_SECONDS)


def wait_ended(data: Path, name: str, seconds: float) -> bool:
    """Wait until the keeper has seen a server end; return whether it has."""
    deadline = time.monotonic() + seconds
    while _server(data, name).exit is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def cause(server: ServerRecord) -> str:
    """Return the end of a server's logs since its start, with advice for the most common failure."""
    ends = ((log, tail(log, begin)) for log, begin in zip(server.logs, server.begins, strict=True))
    text = "\n".join(f"{log}:\n{end}" for log, end in ends if end)
    if "No space left on device" in text:
        return f"the disk is full; free some space or set LEFTFOLD_DATA to a larger one\n{text}"
    return text or f"it wrote no log; see {server.logs[0]}"


def _server(data: Path, name: str) -> ServerRecord:
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"the embedded {name} of {data} is no longer running; start it: leftfold up")
    return record.servers[name]


ALL = frozenset({"kafka", "redis"})
"""The names of all embedded servers."""

PROBES: dict[str, Probe] = {"kafka": coordinates, "redis": answers_ping, "redis-tls": is_open}
"""The probe of each server."""

# The first start fetches the jars.
_BUSY_SECONDS = 900.0
_ROOM_BYTES = 50_000_000
_PRIVATE = 0o700
_LOCK = "up.lock"


def up(
    settings: LocalSettings | None = None, *, progress: Progress | None = None, want: frozenset[str] = ALL
) -> Servers:
    """Start the servers that do not run yet, wait until they are ready, and leave them running.

    Raises:
        ConfigurationError: Java, Redis or a jar is missing, a port is taken, or the directory is in other use.
        InfrastructureError: a jar cannot be fetched, or a server does not start; the message shows its log.
    """
    settings = settings or LocalSettings()
    data = _prepare(settings.data)
    with _alone(data):
        record = read_record(data)
        if record is not None and record.kind != keeper.DETACHED:
            raise _in_use(data, record)
        servers, _ = _launch(data, settings, keeper.DETACHED, progress, want)
        return servers


@contextmanager
def embedded(
    data: Path, *, settings: LocalSettings | None = None, progress: Progress | None = None, want: frozenset[str] = ALL
) -> Iterator[Servers]:
    """Run servers while the block runs; they stop with it and with this process, even if it is killed.

    Raises:
        ConfigurationError, InfrastructureError: as for `up`; also when the directory's servers run already.
    """
    settings = (settings or LocalSettings()).model_copy(update={"data": data})
    data = _prepare(data)
    with _alone(data):
        record = read_record(data)
        if record is not None:
            raise _in_use(data, record)
        servers, process = _launch(data, settings, keeper.EMBEDDED, progress, want)
    try:
        yield servers
    finally:
        if process is not None:
            end_keeper(data, process, settings.stop_timeout)


def down(data: Path, *, settings: LocalSettings | None = None) -> bool:
    """Stop the servers that `up` started; return whether any ran."""
    settings = settings or LocalSettings()
    if not data.is_dir():
        return False
    data = data.resolve()
    with _alone(data):
        record = read_record(data)
        if record is not None and record.kind != keeper.DETACHED:
            raise _in_use(data, record)
        if record is not None:
            stop_keeper(data, record.pid, settings.stop_timeout)
        (data / "servers.json").unlink(missing_ok=True)
        return record is not None


def _launch(
    data: Path, settings: LocalSettings, kind: str, progress: Progress | None, want: frozenset[str]
) -> tuple[Servers, subprocess.Popen[bytes] | None]:
    record, process = read_record(data), None
    if record is not None and "redis" in want & record.running and "@" not in record.servers["redis"].address:
        # An older version started it, without a password.
        os.kill(record.servers["redis"].pid, signal.SIGTERM)
        if not wait_ended(data, "redis", settings.stop_timeout):
            raise InfrastructureError(f"the embedded redis of {data} has no password and does not end: leftfold down")
        record = read_record(data)
    secure = secured(data)
    if settings.secure and secure is None and record is not None and record.running:
        raise ConfigurationError(
            f"the servers in {data} run without logins; stop them first: leftfold down, then leftfold up --secure"
        )
    if settings.secure or secure is not None:
        secure = make_secure(data)
    relay = frozenset({"redis-tls"}) if secure is not None and "redis" in want else frozenset()
    missing = (want | relay) - (record.running if record is not None else frozenset())
    shown = progress or StderrProgress()
    plans = [p for name in sorted(missing - relay) for p in _plan(name, data, settings, shown, secure)]
    if record is None:
        (data / "plan.json").unlink(missing_ok=True)
    try:
        if missing:
            request = write_plan(data, plans, stop_seconds=settings.stop_timeout)
            if record is None:
                process = start_keeper(data, kind)
            else:
                os.kill(record.pid, signal.SIGHUP)
            wait_answer(data, request)
        for name in sorted(want | relay | {plan.name for plan in plans}):
            wait_ready(data, name, probe(data, name), settings.start_timeout)
        return announce(data), process
    except BaseException:
        if process is not None:
            end_keeper(data, process, settings.stop_timeout)
        raise


def probe(data: Path, name: str) -> Probe:
    """The probe of a server of a data directory, with a login where one is required."""
    secure = secured(data)
    return PROBES[name] if secure is None or name != "kafka" else partial(coordinates, login=secure.librdkafka())


def _plan(
    name: str, data: Path, settings: LocalSettings, progress: Progress, secure: Secure | None
) -> list[ServerPlan]:
    match name:
        case "kafka":
            return [plan_kafka(settings, data, progress, secure)]
        case "redis":
            plain = plan_redis(settings, data, secure)
            return [plain] if secure is None else [plain, plan_redis_tls(data, plain, secure)]
        case _:
            raise ConfigurationError(f"there is no embedded server {name!r}; there are {', '.join(sorted(ALL))}")


def _prepare(data: Path) -> Path:
    try:
        data.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        _close(data)
        with tempfile.TemporaryFile(dir=data):
            free = shutil.disk_usage(data).free
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {data} cannot be written: {error.strerror}; correct that or set LEFTFOLD_DATA"
        ) from error
    if free < _ROOM_BYTES:
        raise InfrastructureError(
            f"the disk of {data} is full ({free / 1e6:.0f} MB left, {_ROOM_BYTES / 1e6:.0f} MB needed); free some "
            "space or set LEFTFOLD_DATA to a larger one"
        )
    return data.resolve()


def _close(data: Path) -> None:
    """Make a data directory private to this user; one of an older version may be open to others."""
    if is_foreign(data):
        raise ConfigurationError(
            f"the data directory {data} belongs to another user; set LEFTFOLD_DATA to a directory of your own"
        )
    if not stat.S_IMODE(data.stat().st_mode) & ~_PRIVATE & 0o777:
        return
    if data.name != ".leftfold" and any(data.iterdir()) and not (data / _LOCK).exists():
        raise ConfigurationError(
            f"the data directory {data} holds other files and is open to other users; set LEFTFOLD_DATA to a "
            f"directory of its own, such as {data / '.leftfold'}, or type: chmod 700 {shlex.quote(str(data))}"
        )
    data.chmod(_PRIVATE)


def _alone(data: Path) -> AbstractContextManager[None]:
    busy = f"another process has been starting or stopping the servers in {data} for {_BUSY_SECONDS:.0f} s; end it"
    return held(data / _LOCK, seconds=_BUSY_SECONDS, busy=busy)


def _in_use(data: Path, record: KeeperRecord) -> ConfigurationError:
    if record.kind == keeper.DETACHED:
        place = shlex.quote(str(data))
        step = f"`leftfold up` started them; stop them with: LEFTFOLD_DATA={place} leftfold down"
    else:
        step = f"process {record.parent} runs them for itself; end it"
    return ConfigurationError(
        f"the servers in {data} are in use (keeper {record.pid}): {step}, or set LEFTFOLD_DATA to another directory"
    )


def restart(data: Path, name: str, *, seconds: float = 180.0) -> None:
    """Stop one server in order if it runs, start it again on its port, and wait until it is ready."""
    data = data.resolve()
    record = _signalled(data, name, signal.SIGTERM)
    if not wait_ended(data, name, seconds):
        raise InfrastructureError(f"the embedded {name} of {data} does not end within {seconds:.0f} s")
    request = write_plan(data, (), stop_seconds=seconds)
    os.kill(record.pid, signal.SIGHUP)
    wait_answer(data, request)
    wait_ready(data, name, probe(data, name), seconds)
    announce(data)


def kill(data: Path, name: str, *, seconds: float = 60.0) -> None:
    """Kill one server as a crash would, and wait until it has ended; `up` or `restart` starts it again."""
    data = data.resolve()
    _signalled(data, name, signal.SIGKILL)
    wait_ended(data, name, seconds)


def _signalled(data: Path, name: str, number: signal.Signals) -> KeeperRecord:
    """The record of the keeper of a server, which gets a signal if it runs."""
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"no embedded {name} was started in {data}; start it: leftfold up")
    if name in record.running:
        os.kill(record.servers[name].pid, number)
    return record


_CONNECT_SECONDS = 0.5


@dataclass(frozen=True)
class ServerStatus:
    """The status of one server that was started.

    Args:
        address: its address, without the password.
        up: it runs and its port is open.
        uptime: seconds since its start.
        log: its own log.
        reason: why it is down; empty when it is up.
    """

    name: str
    address: str
    pid: int
    up: bool
    uptime: float
    log: Path
    reason: str


@dataclass(frozen=True)
class Status:
    """The servers of a data directory and their keeper; no keeper, no servers.

    Args:
        keeper: the process id, None when nothing runs.
        advice: what to do when one of them does not answer.
    """

    data: Path
    keeper: int | None
    servers: tuple[ServerStatus, ...]
    advice: str = "start it: leftfold up"


def status(data: Path) -> Status:
    """Return the status of the servers in a data directory."""
    record = read_record(data.resolve())
    if record is None:
        return Status(data=data, keeper=None, servers=())
    servers = tuple(_status_of(name, server) for name, server in sorted(record.servers.items()))
    return Status(data=data, keeper=record.pid, servers=servers, advice=record.advice)


def ended(data: Path) -> dict[str, str]:
    """The servers that have ended although their keeper lives, each with its ending; it connects to no server."""
    record = read_record(data.resolve())
    found = record.servers.items() if record is not None else ()
    return {name: _ending(server, server.exit) for name, server in found if server.exit is not None}


def _ending(server: ServerRecord, code: int) -> str:
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}: {cause(server)}"


def _status_of(name: str, server: ServerRecord) -> ServerStatus:
    if server.exit is not None:
        reason = _ending(server, server.exit)
    else:
        reason = "" if is_open(server.address, _CONNECT_SECONDS) else f"its port is not open: {cause(server)}"
    return ServerStatus(
        name=name,
        address=veiled(server.address),
        pid=server.pid,
        up=not reason,
        uptime=time.time() - server.since,
        log=server.logs[0],
        reason=reason,
    )
