"""Connections to Redis on which a write is fatal, or comes too late: a folder says which write, and what happens."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis
import psutil

from leftfold.redis import RedisSettings
from leftfold.redis.connection.protocol import EXEC, connect
from tests.waiting import wait_until

__all__ = ["Doom"]

_EXECUTOR = "CoarseGrainedExecutorBackend"
_PEEKED = 1 << 20
# Of one length and with the same arguments, but no write fails for what was touched.
_WATCH, _TOUCH = b"\r\nWATCH\r\n", b"\r\nTOUCH\r\n"


@dataclass(frozen=True)
class Doom:
    """Connects tasks of Spark. The first one to come to a write that the folder names meets it there.

    `before`, `within` and `behind` a write kill; `late` stops before it, writes the process id to the file `late`,
    continues once there is a file `go`, and writes to `outcome` what came of it. Writes are counted by connection.

    Args:
        watched: whether checkpoints are watched while rows are written, as they must be.
        spared: a process whose own writes are left alone.
    """

    folder: Path
    watched: bool = True
    spared: int = 0

    def __call__(self, settings: RedisSettings) -> socket.socket:
        """Opens a connection."""
        plain = connect(settings)
        return plain if os.getpid() == self.spared else _Doomed(plain, self)

    def arm(self, what: str, write: int, times: int = 1) -> list[Path]:
        """Names a write; the files appear when a task has met it, one for each of so many times."""
        names = [f"{what}.{write}.{time.monotonic_ns()}.{n}" for n in range(times)]
        for name in names:
            (self.folder / f"armed.{name}").touch()
        return [self.folder / f"met.{name}" for name in names]

    def disarm(self) -> None:
        """Whatever was not met never will be."""
        for path in self.folder.glob("armed.*"):
            path.unlink(missing_ok=True)  # a task may be meeting it

    def meets(self, write: int) -> str:
        """What happens to this process at its nth write; '' = nothing."""
        for path in sorted(self.folder.glob(f"armed.*.{write}.*")):
            name = path.name.removeprefix("armed.")
            try:
                path.rename(self.folder / f"met.{name}")
            except FileNotFoundError:
                continue  # another task was faster
            return name.partition(".")[0]
        return ""

    def kill(self) -> None:
        """Kills the task's own executor, with everything that it has started."""
        executor = next(parent for parent in psutil.Process().parents() if _EXECUTOR in " ".join(parent.cmdline()))
        executor.kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, what: str, text: str) -> None:
        """Makes a file that is whole from the first moment."""
        new = self.folder / f"{what}.new"
        new.write_text(text)
        new.rename(self.folder / what)


class _Doomed(socket.socket):
    def __init__(self, plain: socket.socket, doom: Doom) -> None:
        super().__init__(fileno=plain.detach())
        self._doom, self._writes = doom, 0

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Sends everything, unless this is the write."""
        if not self._doom.watched:
            data = data.replace(_WATCH, _TOUCH)
        self._writes += EXEC in data
        what = self._doom.meets(self._writes) if EXEC in data else ""
        if what == "late":
            self._wait(data)
        elif what:
            count = {"before": 0, "within": data.index(EXEC) // 2, "behind": len(data)}[what]
            super().sendall(data[:count])
            if what == "behind":
                self._answer(data)
            self._doom.kill()
            super().sendall(data[count:])
        else:
            super().sendall(data)

    def _wait(self, data: bytes) -> None:
        # A machine that is cut off hears neither of its executor's end nor of the driver's.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._doom.tell("late", str(os.getpid()))
        wait_until((self._doom.folder / "go").exists, f"the word that process {os.getpid()} may go on")
        super().sendall(data)
        self._doom.tell("outcome", "refused" if self._answer(data) is None else "written")

    def _answer(self, data: bytes) -> Any:
        """What the server says to the EXEC in what was sent; it stays in the connection for the next reader."""
        nth, replies = _parsed(data).index([b"EXEC"]), list[Any]()

        def answered() -> bool:
            replies[:] = _parsed(self.recv(_PEEKED, socket.MSG_PEEK))
            return len(replies) > nth

        wait_until(answered, "the answer to EXEC")
        return replies[nth]


def _parsed(data: bytes) -> list[Any]:
    """Commands are written as replies are."""
    reader, found = hiredis.Reader(), list[Any]()
    reader.feed(data)
    while (one := reader.gets()) is not False:
        found.append(one)
    return found
