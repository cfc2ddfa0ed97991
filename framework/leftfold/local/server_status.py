"""The status of the embedded servers of a data directory, and killing or restarting one of them."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from leftfold.errors import InfrastructureError
from leftfold.local.launch import KeeperRecord, ServerRecord, announce, read_record, wait_answer, write_plan
from leftfold.local.servers import cause, probe, wait_ended, wait_ready
from leftfold.safety import veiled

__all__ = ["ServerStatus", "Status", "ended", "kill", "restart", "status"]


def restart(data: Path, name: str, *, seconds: float = 180.0) -> None:
    """Stop one server in order if it runs, start it again on its port, and wait until it is ready."""
    data = data.resolve()
    record = _record_of(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGTERM)
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
    record = _record_of(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGKILL)
    wait_ended(data, name, seconds)


def _record_of(data: Path, name: str) -> KeeperRecord:
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"no embedded {name} was started in {data}; start it: leftfold up")
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
    servers = tuple(_status(name, server) for name, server in sorted(record.servers.items()))
    return Status(data=data, keeper=record.pid, servers=servers, advice=record.advice)


def ended(data: Path) -> dict[str, str]:
    """The servers that have ended although their keeper lives, each with its ending; it connects to no server."""
    record = read_record(data.resolve())
    found = record.servers.items() if record is not None else ()
    return {name: _ending(server, server.exit) for name, server in found if server.exit is not None}


def _ending(server: ServerRecord, code: int) -> str:
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}: {cause(server)}"


def _status(name: str, server: ServerRecord) -> ServerStatus:
    if server.exit is not None:
        reason = _ending(server, server.exit)
    else:
        reason = "" if _is_open(server.address) else f"its port is not open: {cause(server)}"
    return ServerStatus(
        name=name,
        address=veiled(server.address),
        pid=server.pid,
        up=not reason,
        uptime=time.time() - server.since,
        log=server.logs[0],
        reason=reason,
    )


def _is_open(address: str) -> bool:
    url = urlsplit(address if "://" in address else f"kafka://{address}")
    try:
        socket.create_connection((str(url.hostname), int(url.port or 0)), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
