"""What a keeper tells about itself and its servers in `keeper.json`."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from leftfold.errors import InfrastructureError
from leftfold.local.flock import is_held

__all__ = ["Record", "ServerRecord", "read_record", "wait_free"]

_POLL_SECONDS = 0.01
_DEATH_SECONDS = 5.0


@dataclass(frozen=True)
class ServerRecord:
    """One server: `since` is when it started (seconds since 1970), `exit` how it ended, None while it runs.

    `begins` are the sizes that its logs had then, since it writes on behind what its predecessor wrote.
    """

    pid: int
    address: str
    since: float
    exit: int | None
    logs: tuple[Path, ...]
    begins: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """A live keeper: its kind, the process that started it, the last request it carried out, its servers."""

    pid: int
    kind: str
    parent: int
    request: str
    servers: dict[str, ServerRecord]

    @property
    def running(self) -> frozenset[str]:
        """The names of the servers that run."""
        return frozenset(name for name, server in self.servers.items() if server.exit is None)


def read_record(data: Path) -> Record | None:
    """Return what the live keeper of a data directory tells, or None when there is none or it tells nothing yet.

    Raises:
        InfrastructureError: the keeper is dead but its servers are not, which only happens where the system
            cannot tie them to it (elsewhere than on Linux).
    """
    if not is_held(data / "keeper.lock"):
        return None
    record = _parse(data / "keeper.json")
    if record is None or _is_alive(record.pid) or wait_free(data, _DEATH_SECONDS):
        return record if is_held(data / "keeper.lock") else None
    pids = " ".join(str(server.pid) for server in record.servers.values())
    raise InfrastructureError(
        f"the keeper of {data} (pid {record.pid}) was killed and its servers still run; end them: kill {pids}"
    )


def wait_free(data: Path, seconds: float) -> bool:
    """Wait until the keeper of a data directory and all its servers are gone; return whether they are."""
    deadline = time.monotonic() + seconds
    while is_held(data / "keeper.lock"):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _parse(path: Path) -> Record | None:
    try:
        told = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    servers = {
        name: ServerRecord(**{**server, "logs": tuple(map(Path, server["logs"])), "begins": tuple(server["begins"])})
        for name, server in told["servers"].items()
    }
    return Record(**{**told, "servers": servers})


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A keeper whose parent is gone may stay a zombie for long where process 1 does not reap.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"
