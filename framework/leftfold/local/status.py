"""What runs in a data directory."""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from leftfold.local.readiness import cause
from leftfold.local.record import ServerRecord, read_record

__all__ = ["ServerStatus", "Status", "status"]

_CONNECT_SECONDS = 0.5


@dataclass(frozen=True)
class ServerStatus:
    """One server that was started.

    Args:
        up: it lives and its port is open.
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
    """The servers of a data directory and the process that keeps them; no keeper, no servers.

    Args:
        keeper: the process id, None when nothing runs.
        kind: `detached` after `up`, `embedded` when they belong to another process.
    """

    data: Path
    keeper: int | None
    kind: str
    servers: tuple[ServerStatus, ...]


def status(data: Path) -> Status:
    """Say what runs in a data directory."""
    record = read_record(data.resolve())
    if record is None:
        return Status(data=data, keeper=None, kind="", servers=())
    servers = tuple(_status(name, server) for name, server in sorted(record.servers.items()))
    return Status(data=data, keeper=record.pid, kind=record.kind, servers=servers)


def _status(name: str, server: ServerRecord) -> ServerStatus:
    if server.exit is not None:
        killed = f"was killed ({signal.Signals(-server.exit).name})" if server.exit < 0 else ""
        reason = killed or f"ended with {server.exit}: {cause(server)}"
    else:
        reason = "" if _is_open(server.address) else f"its port is not open: {cause(server)}"
    return ServerStatus(
        name=name,
        address=server.address,
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
