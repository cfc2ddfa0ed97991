"""The keeper: the process that owns the servers of one data directory, so that none outlives its purpose.

Run as a script (`python -I keeper.py DATA KIND`) with the standard library only: it starts in 30 ms and stays small.
A *detached* keeper lives until it gets SIGTERM; an *embedded* one also ends with the process that started it, which
it learns from the end of its standard input or from a new parent. Servers die with their keeper, even by kill -9.

SIGTERM stops all servers and ends, as does the deletion of the data directory, without which no command finds them.
SIGHUP reads `plan.json` and starts the servers that do not run. The keeper writes its state to `keeper.json`. The lock
file stays locked as long as the keeper or one of its servers lives, because they inherit it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["DETACHED", "EMBEDDED", "main"]

DETACHED = "detached"
EMBEDDED = "embedded"

_WAKE_SECONDS = 0.5
_POLL_SECONDS = 0.005
_LOCK_SECONDS = 5.0
_NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclasses.dataclass
class _ServerProcess:
    process: subprocess.Popen[bytes] | None
    record: dict[str, object]

    def ended(self) -> bool:
        """Return whether the server has ended since the last call, and record its exit code."""
        if self.process is None or self.record["exit"] is not None or self.process.poll() is None:
            return False
        self.record["exit"] = self.process.returncode
        return True

    def send(self, number: int) -> None:
        """Signal the server if it runs."""
        if self.process is not None and self.record["exit"] is None:
            self.process.send_signal(number)


class Keeper:
    """Starts, watches and stops the servers of one data directory."""

    def __init__(self, data: Path, kind: str, lock: int) -> None:
        self._data, self._kind, self._lock = data, kind, lock
        self._servers: dict[str, _ServerProcess] = {}
        self._parent, self._unwritten = os.getppid(), False
        self._request, self._stop_seconds = "", 0.0
        self._die_with_me = _die_with_parent()

    def run(self) -> None:
        """Keep the servers running until SIGTERM, or until the parent of an embedded keeper has ended."""
        wakes = self._wakes()
        next(wakes)
        self._start_missing()
        for number in wakes:
            if number in (signal.SIGTERM, signal.SIGINT):
                break
            if number == signal.SIGHUP:
                self._start_missing()
            self._notice_ends()
            if self._is_deleted():
                _log(f"{self._data} was deleted")
                break
            if self._kind == EMBEDDED and os.getppid() != self._parent:
                break
        self._stop()

    def _wakes(self) -> Iterator[int]:
        """Install signal handlers, then yield signals: 0 after a timeout, SIGTERM when the parent's pipe ends."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            if self._kind == EMBEDDED:
                selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            yield 0
            while True:
                ready = {key.fd for key, _ in selector.select(_WAKE_SECONDS)}
                if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1024):
                    yield signal.SIGTERM
                yield from os.read(reading, 1024) if reading in ready else (0,)

    def _start_missing(self) -> None:
        plan = json.loads((self._data / "plan.json").read_text("utf-8"))
        self._request, self._stop_seconds = plan["request"], plan["stop_seconds"]
        for server in plan["servers"]:
            running = self._servers.get(server["name"])
            if running is None or running.record["exit"] is not None:
                self._servers[server["name"]] = self._start(**server)
        self._write_record()

    def _start(self, *, name: str, address: str, command: list[str], console: str, logs: list[str]) -> _ServerProcess:
        with Path(console).open("wb") as output:
            begins = [Path(log).stat().st_size if Path(log).exists() else 0 for log in logs]
            record: dict[str, object] = {"address": address, "logs": logs, "begins": begins}
            record |= {"since": time.time(), "exit": None}
            try:
                # A keeper has one thread. That makes a function between fork and exec safe, and lets the death signal,
                # which follows the thread that forked, mean the death of the keeper.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(self._lock,),
                    preexec_fn=self._die_with_me,  # noqa: PLW1509
                )
            except OSError as error:
                output.write(f"{command[0]}: {error}\n".encode())
                return _ServerProcess(None, record | {"pid": 0, "exit": _NOT_STARTED})
        _log(f"{name} started, pid {process.pid}, {address.rpartition('@')[2]}")
        return _ServerProcess(process, record | {"pid": process.pid})

    def _notice_ends(self) -> None:
        ended = [name for name, server in self._servers.items() if server.ended()]
        for name in ended:
            _log(f"{name} ended with {self._servers[name].record['exit']}")
        if ended or self._unwritten:
            self._write_record()

    def _stop(self) -> None:
        for number, seconds in ((signal.SIGTERM, self._stop_seconds), (signal.SIGKILL, self._stop_seconds)):
            for server in self._servers.values():
                server.send(number)
            deadline = time.monotonic() + seconds
            while self._running() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        if not self._is_deleted():
            for name in ("servers.json", "keeper.json"):
                (self._data / name).unlink(missing_ok=True)
        _log("stopped")

    def _is_deleted(self) -> bool:
        """Return whether the lock file was deleted: no command finds these servers, and the path may be another's."""
        try:
            return os.fstat(self._lock).st_nlink == 0
        except OSError:  # a network file system may forget it (ESTALE)
            return True

    def _running(self) -> bool:
        self._notice_ends()
        return any(server.record["exit"] is None for server in self._servers.values())

    def _write_record(self) -> None:
        if self._is_deleted():
            return
        record = {
            "pid": os.getpid(),
            "kind": self._kind,
            "parent": self._parent,
            "request": self._request,
            "servers": {name: server.record for name, server in self._servers.items()},
        }
        new = self._data / ".keeper.json.new"
        try:
            new.touch(mode=0o600)
            new.write_text(json.dumps(record), "utf-8")
            new.replace(self._data / "keeper.json")
        except OSError:
            # A full disk must not end the keeper, and with it the servers.
            self._unwritten = True
        else:
            self._unwritten = False


def main() -> int:
    """Take the lock of the data directory and keep its servers."""
    data, kind = Path(sys.argv[1]), sys.argv[2]
    if kind == DETACHED and os.fork():
        # The process that called reaps this one at once; the keeper itself belongs to init.
        os._exit(0)
    lock = os.open(data / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not _lock(lock):
        _log(f"another keeper has {data}")
        return 1
    _log(f"keeping {data}, {kind}, pid {os.getpid()}")
    Keeper(data, kind, lock).run()
    return 0


def _lock(descriptor: int) -> bool:
    # Processes that check whether a keeper lives hold the lock for a moment.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl, keeper = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(_NOT_STARTED)

    return die_with_parent


def _log(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
