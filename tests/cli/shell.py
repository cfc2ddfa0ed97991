"""Commands as a user types them, each in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Any

import pytest

from leftfold.cli.main import run
from tests.servers import Addresses
from tests.waiting import wait_until

__all__ = ["ROOT", "Shell", "Typed", "serving"]

ROOT = Path(__file__).parents[2]
SECONDS = 240.0


@dataclass(frozen=True)
class Typed:
    """What a command came to."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        """Its output as NDJSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """A directory to type in; what long-running commands write goes to `log`.

    Args:
        environment: what it says besides.
    """

    def __init__(self, place: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place, self.log = place, place / "test.log"
        ours = {"PYTHONPATH": str(ROOT / "framework"), "NO_COLOR": "1", "COLUMNS": "110"}
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("LEFTFOLD_")}
        self._environment |= ours | dict(environment or {})

    def at(self, servers: Addresses) -> Shell:
        """The same one; what is typed reaches these servers, and tests' modules as well as the framework's."""
        self._environment |= {
            "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": servers.kafka,
            "LEFTFOLD_REDIS_URL": servers.redis,
            "PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT}",
        }
        return self

    def __call__(self, *words: str, stdin: str = "") -> Typed:
        """Types a command and waits for its end."""
        return _typist().type(words, self.place, self._environment, stdin)

    def here(self, *words: str) -> Typed:
        """Types a command in this process, which may have what takes long to start: a session of Spark."""
        out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
        found = [entry for entry in self._environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
        with (
            pytest.MonkeyPatch.context() as changed,
            chdir(self.place),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            for name in os.environ.keys() - self._environment.keys():
                changed.delenv(name)
            for name, value in self._environment.items():
                changed.setenv(name, value)
            changed.setattr(sys, "path", [str(self.place), *found, *sys.path])
            code = run(words)
        return Typed(code, _text(out.buffer.getvalue()), _text(err.buffer.getvalue()))

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Types a command that goes on."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "leftfold.cli", *words],
                cwd=self.place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        """What it has written so far."""
        return self.log.read_text("utf-8") if self.log.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        """What a long-running command has logged: every line of it is JSON, or scripts that read the log break."""
        said = self.said().splitlines()
        assert not [line for line in said if not line.startswith('{"') or not line.endswith("}")], self.said()
        return [json.loads(line) for line in said]

    def wait_said(self, *words: str) -> None:
        """Waits until a long-running command has written all of these."""
        wait_until(
            lambda: all(f'"{word}"' in self.said() for word in words), lambda: f"{words}: {self.said()}", SECONDS
        )

    def wait_until(self, process: subprocess.Popen[bytes], condition: Callable[[str], object]) -> None:
        """Waits until what a command that was started has written fulfils a condition."""
        wait_until(lambda: condition(self.said()), self.said, SECONDS, lambda: process.poll() is None)

    def python(self, *words: str) -> Typed:
        """Runs the same Python here."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.place,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return Typed(done.returncode, done.stdout, done.stderr)


class _Typist:
    """The process that all commands of this one are forked from; it ends with this one."""

    def __init__(self, place: Path) -> None:
        self._address = str(place / "typist")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("typist.py")), self._address],
            env=environment | {"PYTHONPATH": str(ROOT / "framework")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        atexit.register(self._end)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"listening\n"

    def type(self, words: Sequence[str], place: Path, environment: Mapping[str, str], stdin: str) -> Typed:
        """Types a command; when it takes too long it is aborted, and says where it was."""
        request = {"words": words, "place": str(place), "environment": environment}
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._address)
                socket.send_fds(connection, [json.dumps(request).encode()], [f.fileno() for f in (given, out, err)])
                with connection.makefile("rb") as answer:
                    child = int(answer.readline())
                    if not select.select([connection], [], [], SECONDS)[0]:
                        os.kill(child, signal.SIGABRT)
                    code = int(answer.readline())
            out.seek(0)
            err.seek(0)
            typed = Typed(code, _text(out.read()), _text(err.read()))
            assert code != -signal.SIGABRT, f"{' '.join(words)} took more than {SECONDS:g} s: {typed}"
            return typed

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)
        shutil.rmtree(Path(self._address).parent)


def _text(written: bytes) -> str:
    """As text pipes give it."""
    return written.decode().replace("\r\n", "\n").replace("\r", "\n")


@cache
def _typist() -> _Typist:
    return _Typist(Path(mkdtemp(prefix="leftfold-typist-")))


@contextmanager
def serving(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run` in a project until the block ends; the block begins once worker and projector are at work."""
    process = shell.start(["run", *words])
    try:
        wait_until(
            lambda: all(f'"{what}"' in shell.said() for what in ("serving", "following")) or process.poll() is not None,
            lambda: f"worker and tail: {shell.said()}",
            SECONDS,
        )
        assert process.poll() is None, shell.said()
        yield process
    finally:
        process.terminate()
        process.wait(240.0)
