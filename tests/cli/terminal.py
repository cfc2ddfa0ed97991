"""A command on a terminal of its own: what it shows there, what is typed into it, Ctrl-C included."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select
from types import TracebackType
from typing import Self, TextIO

from tests.waiting import wait_until

__all__ = ["COMMAND", "CTRL_C", "Terminal", "keys"]

CTRL_C = "\x03"
SECONDS = 240.0
SHELL = Path(__file__).parents[2] / "framework" / "leftfold_shell.py"
COMMAND = (sys.executable, str(SHELL))
# The terminal becomes the one that its Ctrl-C comes from, which is heard whatever the tests were started with.
_BEGIN = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs a command on a pseudo-terminal until the block ends.

    Args:
        command: the program and its arguments; of `leftfold` the words behind `COMMAND`.
    """

    def __init__(self, command: Sequence[str], place: Path, environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._raw = b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *command],
            cwd=place,
            env={**environment, "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    @property
    def raw(self) -> str:
        """Everything shown so far, with what moves the cursor."""
        return self._raw.decode(errors="replace")

    @property
    def shown(self) -> str:
        """Everything shown so far, as text."""
        return _ESCAPE.sub("", self.raw).replace("\r", "")

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self._ours, text.encode())

    def wait_shown(self, pattern: str) -> None:
        """Waits until something is on the terminal."""
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.shown):
            assert self._read(deadline), f"waited for {pattern!r}, and it ended: {self.shown}"

    def wait_asking(self, pattern: str) -> None:
        """Waits until a question is on the terminal and its answer is awaited.

        Python hears a Ctrl-C between the two only behind the answer: it looks at signals, and then waits for input.
        """
        self.wait_shown(pattern)
        call = Path(f"/proc/{self._process.pid}/syscall")
        reads = lambda: call.read_text().split()[1:2] == ["0x0"]  # noqa: E731  # the first argument: standard input
        wait_until(reads, lambda: f"it to read: {self.shown}", SECONDS)

    def ended(self) -> int:
        """Waits for the end and returns the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        return self._process.wait(max(1.0, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Takes what is shown next; whether the command is still there."""
        left = deadline - time.monotonic()
        there, _, _ = select([self._ours], [], [], max(0.0, left))
        assert there, f"waited {SECONDS:g} s: {self.shown}"
        try:
            new = os.read(self._ours, 65536)
        except OSError:  # how Linux says that no process holds the other end any more
            return False
        self._raw += new
        return bool(new)


@contextmanager
def keys(text: str) -> Iterator[TextIO]:
    """The standard input of a command that is typed in this process: a terminal where these keys were pressed."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, text.encode())
        with os.fdopen(theirs) as terminal:
            yield terminal
    finally:
        os.close(ours)
