"""Starting and stopping the embedded servers of one data directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local import keeper
from leftfold.local.files import write_whole
from leftfold.local.flock import held
from leftfold.local.kafka import plan_kafka, takes_transactions
from leftfold.local.launch import start_keeper, stop_keeper, wait_answer
from leftfold.local.plan import ServerPlan, renew_plan, write_plan
from leftfold.local.progress import Progress, StderrProgress
from leftfold.local.readiness import Probe, wait_ended, wait_ready
from leftfold.local.record import Record, read_record
from leftfold.local.redis import answers_ping, plan_redis
from leftfold.local.settings import LocalSettings

__all__ = ["ALL", "Servers", "down", "embedded", "kill", "restart", "up"]

ALL = frozenset({"kafka", "redis"})
"""The servers there are."""

# The first start fetches the jars.
_BUSY_SECONDS = 900.0
_PROBES: dict[str, Probe] = {"kafka": takes_transactions, "redis": answers_ping}


@dataclass(frozen=True)
class Servers:
    """Where the servers of a data directory are: `host:port` and `redis://host:port/0`, empty if not wanted."""

    kafka: str
    redis: str
    data: Path


def up(
    settings: LocalSettings | None = None, *, progress: Progress | None = None, want: frozenset[str] = ALL
) -> Servers:
    """Start what does not run yet, wait until it is ready, and leave it running when this process ends.

    Raises:
        ConfigurationError: Java, Redis or a jar is missing, a port is taken, or the directory is in other use.
        InfrastructureError: the jars are not to be had, or a server does not start; the message shows its log.
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
    data: Path,
    *,
    settings: LocalSettings | None = None,
    progress: Progress | None = None,
    want: frozenset[str] = ALL,
) -> Iterator[Servers]:
    """Run servers while the block runs; they stop with it and with this process, even if it is killed.

    Raises:
        ConfigurationError, InfrastructureError: as `up` does; also when the directory's servers run already.
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
        stop_keeper(data, process.pid, settings.stop_timeout)
        process.communicate()


def down(data: Path, *, settings: LocalSettings | None = None) -> bool:
    """Stop what `up` started and return whether anything ran."""
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


def restart(data: Path, name: str, *, seconds: float = 60.0) -> None:
    """Stop one server in order if it runs, start it again on its port, and wait until it is ready."""
    data = data.resolve()
    record = _kept(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGTERM)
    if not wait_ended(data, name, seconds):
        raise InfrastructureError(f"the embedded {name} of {data} does not end within {seconds:.0f} s")
    request = renew_plan(data)
    os.kill(record.pid, signal.SIGHUP)
    wait_answer(data, request)
    wait_ready(data, name, _PROBES[name], seconds)


def kill(data: Path, name: str, *, seconds: float = 10.0) -> None:
    """End one server as by a crash and wait until it is gone; `up` or `restart` brings it back."""
    data = data.resolve()
    record = _kept(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGKILL)
    wait_ended(data, name, seconds)


def _launch(
    data: Path, settings: LocalSettings, kind: str, progress: Progress | None, want: frozenset[str]
) -> tuple[Servers, subprocess.Popen[bytes] | None]:
    record, process = read_record(data), None
    missing = want - (record.running if record is not None else frozenset())
    plans = [_plan(name, data, settings, progress or StderrProgress()) for name in sorted(missing)]
    request = write_plan(data, plans, stop_seconds=settings.stop_timeout)
    if record is None:
        process = start_keeper(data, kind)
    else:
        os.kill(record.pid, signal.SIGHUP)
    try:
        wait_answer(data, request)
        for name in sorted(want):
            wait_ready(data, name, _PROBES[name], settings.start_timeout)
        return _tell(data), process
    except BaseException:
        started = read_record(data) if record is None else None
        if started is not None:
            stop_keeper(data, started.pid, settings.stop_timeout)
        if process is not None:
            process.communicate()
        raise


def _plan(name: str, data: Path, settings: LocalSettings, progress: Progress) -> ServerPlan:
    match name:
        case "kafka":
            return plan_kafka(settings, data, progress)
        case "redis":
            return plan_redis(settings, data)
        case _:
            raise ConfigurationError(f"there is no embedded server {name!r}; there are {', '.join(sorted(ALL))}")


def _tell(data: Path) -> Servers:
    record = read_record(data)
    servers = {} if record is None else {name: record.servers[name] for name in record.running}
    addresses = {name: server.address for name, server in servers.items()}
    pids = {name: server.pid for name, server in servers.items()}
    write_whole(data / "servers.json", json.dumps({**addresses, "pids": pids}, indent=2) + "\n")
    return Servers(kafka=addresses.get("kafka", ""), redis=addresses.get("redis", ""), data=data)


def _kept(data: Path, name: str) -> Record:
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"no {name} is kept in {data}; start it: leftfold up")
    return record


def _prepare(data: Path) -> Path:
    try:
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data):
            return data.resolve()
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {data} cannot be written: {error.strerror}; correct that or set LEFTFOLD_DATA"
        ) from error


def _alone(data: Path) -> AbstractContextManager[None]:
    busy = f"another process has been starting or stopping the servers in {data} for {_BUSY_SECONDS:.0f} s; end it"
    return held(data / "up.lock", seconds=_BUSY_SECONDS, busy=busy)


def _in_use(data: Path, record: Record) -> ConfigurationError:
    if record.kind == keeper.DETACHED:
        mend = f"`leftfold up` started them; stop them with: LEFTFOLD_DATA={data} leftfold down"
    else:
        mend = f"process {record.parent} runs them for itself; end it"
    return ConfigurationError(
        f"the servers in {data} are in use (keeper {record.pid}): {mend}, or set LEFTFOLD_DATA to another directory"
    )
