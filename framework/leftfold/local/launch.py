"""Starts, queries and stops the keeper process of a data directory, through its plan and record files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leftfold.errors import InfrastructureError
from leftfold.local import keeper
from leftfold.local.files import is_held, tail, write_whole
from leftfold.local.secure import secured
from leftfold.model.rights import ADMIN

__all__ = [
    "KeeperRecord",
    "ServerPlan",
    "ServerRecord",
    "Servers",
    "announce",
    "end_keeper",
    "read_record",
    "start_keeper",
    "stop_keeper",
    "wait_answer",
    "write_plan",
]


@dataclass(frozen=True)
class ServerPlan:
    """One server to start.

    Args:
        address: where clients reach it.
        command: the program and its arguments.
        console: the file for its standard output and error; emptied at each start.
        logs: the files that show the cause of a failure, the most informative first.
    """

    name: str
    address: str
    command: tuple[str, ...]
    console: Path
    logs: tuple[Path, ...]


def write_plan(data: Path, plans: Iterable[ServerPlan], *, stop_seconds: float) -> str:
    """Add servers to the plan of the keeper, and return the id of this request.

    The keeper reports the id once the servers were started.
    """
    servers = {**_planned(data), **{plan.name: asdict(plan) for plan in plans}}
    request = uuid.uuid4().hex
    plan = {"request": request, "stop_seconds": stop_seconds, "servers": list(servers.values())}
    write_whole(data / "plan.json", json.dumps(plan, default=str, indent=2) + "\n")
    return request


def _planned(data: Path) -> dict[str, object]:
    try:
        plan = json.loads((data / "plan.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {server["name"]: server for server in plan["servers"]}


_RECORD_POLL_SECONDS = 0.01
_DEATH_SECONDS = 5.0


@dataclass(frozen=True)
class ServerRecord:
    """One server: `since` is its start in seconds since 1970, `exit` its exit code, None while it runs.

    `begins` are the sizes in bytes of its logs at that time, since it appends to the logs of its predecessor.
    """

    pid: int
    address: str
    since: float
    exit: int | None
    logs: tuple[Path, ...]
    begins: tuple[int, ...]


@dataclass(frozen=True)
class KeeperRecord:
    """A live keeper: its kind, its parent process, the last request it carried out, and its servers."""

    pid: int
    kind: str
    parent: int
    request: str
    servers: dict[str, ServerRecord]

    @property
    def running(self) -> frozenset[str]:
        """The names of the servers that run."""
        return frozenset(name for name, server in self.servers.items() if server.exit is None)

    @property
    def advice(self) -> str:
        """What to do when one of its servers does not answer; `leftfold up` refuses those of another process."""
        if self.kind == keeper.DETACHED:
            return "start it: leftfold up"
        return (
            f"process {self.parent} keeps the servers here: `leftfold dev` starts one again by itself, "
            f"another program is to be ended and started again"
        )


def read_record(data: Path) -> KeeperRecord | None:
    """Return the record of a data directory's live keeper; None when there is no keeper or no record yet.

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
    """Wait until the keeper of a data directory and all its servers have ended; return whether they have."""
    deadline = time.monotonic() + seconds
    while is_held(data / "keeper.lock"):
        if time.monotonic() > deadline:
            return False
        time.sleep(_RECORD_POLL_SECONDS)
    return True


def _parse(path: Path) -> KeeperRecord | None:
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    servers = {
        name: ServerRecord(**{**server, "logs": tuple(map(Path, server["logs"])), "begins": tuple(server["begins"])})
        for name, server in record["servers"].items()
    }
    return KeeperRecord(**{**record, "servers": servers})


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A keeper whose parent has ended may stay a zombie for long where process 1 does not reap.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


@dataclass(frozen=True)
class Servers:
    """The addresses of a data directory's servers: `host:port` and a `redis://` URL, empty if not wanted.

    The URL holds the password of the embedded Redis: give it to clients, but print `veiled(servers.redis)`. Where the
    servers are secure, `kafka_login` and `redis_login` are further fields of the clients' settings.
    """

    kafka: str
    redis: str = field(repr=False)
    data: Path
    kafka_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    redis_login: Mapping[str, str] = field(default_factory=dict, repr=False)


def announce(data: Path) -> Servers:
    """Write the addresses of the running servers, which must be ready, to `servers.json`, and return them."""
    record = read_record(data)
    servers = {} if record is None else {name: record.servers[name] for name in sorted(record.running)}
    addresses = {name: server.address for name, server in servers.items()}
    pids = {name: server.pid for name, server in servers.items()}
    kafka, redis = addresses.get("kafka", ""), addresses.pop("redis-tls", addresses.get("redis", ""))
    urls = {name: address for name, address in (("kafka", kafka), ("redis", redis)) if address}
    advice = {} if record is None else {"advice": record.advice}
    secure, logins = secured(data), dict[str, dict[str, str]]()
    if secure is not None:
        secure.tell(kafka, redis)
        logins = {"kafka_login": secure.login(ADMIN), "redis_login": {"ca_file": str(secure.ca)}}
    write_whole(data / "servers.json", json.dumps({**urls, **logins, **advice, "pids": pids}, indent=2) + "\n")
    return Servers(kafka=kafka, redis=redis, data=data, **logins)


_ANSWER_SECONDS = 60.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.005


def start_keeper(data: Path, kind: str) -> subprocess.Popen[bytes]:
    """Start a keeper, which starts the servers in `plan.json`.

    Returns:
        An embedded keeper, which ends with its standard input; for a detached one, the intermediate process, which has
        ended.
    """
    for name in ("keeper.json", "servers.json"):
        (data / name).unlink(missing_ok=True)
    embedded = kind == keeper.EMBEDDED
    with (data / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(data), kind],
            stdin=subprocess.PIPE if embedded else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is for the application, which then stops its servers in order.
            start_new_session=True,
        )
    if not embedded:
        process.wait()
    return process


def wait_answer(data: Path, request: str) -> KeeperRecord:
    """Wait until the keeper has started the servers of a request."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        record = read_record(data)
        if record is not None and record.request == request:
            return record
        time.sleep(_POLL_SECONDS)
    log = data / "keeper.log"
    raise InfrastructureError(f"the keeper of {data} did not answer for {_ANSWER_SECONDS:.0f} s; {log}:\n{tail(log)}")


def stop_keeper(data: Path, pid: int, seconds: float) -> None:
    """Stop a keeper and its servers by SIGTERM, and by SIGKILL when they do not end within some seconds."""
    for number, wait in ((signal.SIGTERM, seconds + _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_free(data, wait):
            return
    raise InfrastructureError(f"the servers of {data} do not end; look at {data / 'keeper.log'}")


def end_keeper(data: Path, process: subprocess.Popen[bytes], seconds: float) -> None:
    """End the keeper that `start_keeper` started, of either kind."""
    if process.stdin is None:
        record = read_record(data)
        if record is not None:
            stop_keeper(data, record.pid, seconds)
        return
    # Closing its input is not enough: a child that this process has forked since holds that open too.
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds + _GRACE_SECONDS)
    process.kill()
    process.communicate()
