"""Commands as a user types them: in this process, or in one of their own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeAlias

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from leftfold.cli.main import app, run
from leftfold.errors import InfrastructureError
from tests.servers import Addresses
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["MACHINE", "ROOT", "Shell", "Typed", "Typing", "items", "parse_words", "running", "serving", "typing_with"]

ROOT = Path(__file__).parents[2]
SECONDS = 240.0
MACHINE = ("LEFTFOLD_JARS", "LEFTFOLD_IVY_SETTINGS", "LEFTFOLD_LOCAL_KAFKA_JVM", "LEFTFOLD_SPARK_PROPERTIES")
"""What the environment may say of the machine itself, and of the session of Spark that tests share."""


class Typed(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    def ok(self) -> Typed:
        """The same, after a check that it ended with exit code 0."""
        assert self.code == 0, self
        return self

    def ended(self, code: int, *said: str) -> Typed:
        """The same, after a check that it ended with this exit code and said all of this on standard error."""
        assert (self.code, [words for words in said if words not in self.err]) == (code, []), self
        return self

    def rows(self) -> list[dict[str, Any]]:
        """Its output as NDJSON."""
        return [json.loads(line) for line in self.out.splitlines()]


Typing: TypeAlias = Callable[..., Typed]
"""Types a command."""


def typing_with(capsys: pytest.CaptureFixture[str], *more: str) -> Typing:
    """Types commands in this process, each with more words behind it."""

    def type_(*words: str) -> Typed:
        capsys.readouterr()
        return Typed(run([*words, *more]), *capsys.readouterr())

    return type_


def parse_words(words: Sequence[str]) -> None:
    """Has the command line take words without doing anything; a command without its arguments is only named."""
    command: Any = get_command(app)
    rest = list(words)
    while rest and isinstance(command, TyperGroup) and rest[0] not in ("--help", "--version"):
        known = command.get_command(command.make_context("", [], resilient_parsing=True), rest[0])
        assert known is not None, f"there is no command {rest[0]!r}"
        command, rest = known, rest[1:]
    if rest and "--help" not in rest and "--version" not in rest:
        # An option may connect, to brokers that are not there.
        with pytest.MonkeyPatch.context() as changed, suppress(InfrastructureError):
            changed.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
            command.make_context(words[0], rest)


class Shell:
    """A directory to type in; what long-running commands write goes to `log`.

    Args:
        environment: what it says besides.
    """

    def __init__(self, place: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place, self.log = place, place / "test.log"
        ours = {"PYTHONPATH": str(ROOT / "framework"), "NO_COLOR": "1", "COLUMNS": "110"}
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("LEFTFOLD_") or k in MACHINE}
        self._environment |= ours | dict(environment or {})

    def at(self, servers: Addresses) -> Shell:
        """The same one; what is typed reaches these servers, and tests' modules as well as the framework's.

        A broker may stand still for a while, unless the environment says for how long.
        """
        self._environment.setdefault("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", str(WAIT_SECONDS))
        self._environment |= {
            "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": servers.kafka,
            "LEFTFOLD_REDIS_URL": servers.redis,
            "PYTHONPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT}",
        }
        return self

    def beside(self, name: str) -> Shell:
        """The same one, with a log of its own."""
        other = Shell(self.place, self._environment)
        other.log = self.place / f"{name}.log"
        return other

    def __call__(self, *words: str, stdin: str | TextIO = "") -> Typed:
        """Types a command in this process, which has imported everything and may have a session of Spark."""
        out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
        found = [entry for entry in self._environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
        with pytest.MonkeyPatch.context() as changed, chdir(self.place), redirect_stdout(out), redirect_stderr(err):
            for name in os.environ.keys() - self._environment.keys():
                changed.delenv(name)
            for name, value in self._environment.items():
                changed.setenv(name, value)
            changed.setattr(sys, "path", [str(self.place), *found, *sys.path])
            changed.setattr(sys, "stdin", StringIO(stdin) if isinstance(stdin, str) else stdin)
            importlib.invalidate_caches()
            try:
                code = run(words)
            finally:
                self._forget()
        return Typed(code, _text(out.buffer.getvalue()), _text(err.buffer.getvalue()))

    here = __call__

    def apart(self, *words: str) -> Typed:
        """Types a command in a process of its own: what its children write is captured, too."""
        return self.python("-m", "leftfold.cli", *words)

    def _forget(self) -> None:
        """The next command imports the project's modules again, as they are then; others have the same names."""
        for name, module in list(sys.modules.items()):
            where = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
            if any(Path(one).is_relative_to(self.place) and not Path(one).is_relative_to(ROOT) for one in where):
                del sys.modules[name]

    def start(
        self, words: Sequence[str], *, module: str = "leftfold.cli", stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Types a command that keeps running."""
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=self.place,
                env=self._environment,
                stdin=stdin,
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


def items(shell: Shell, cart: str) -> int:
    """How many items a cart has in the row that this code's readers see, in a project as it is made; -1 without one."""
    result = shell("get", "cart_summary", cart, "--json")
    return int(result.rows()[0]["row"]["items"]) if result.code == 0 else -1


def _text(written: bytes) -> str:
    """As text pipes give it."""
    return written.decode().replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def running(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that keeps running until the block ends."""
    process = shell.start(words)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()


@contextmanager
def serving(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run` in a project until the block ends; the block begins once worker and projector are at work."""
    with running(shell, "run", *words) as process:
        shell.wait_until(process, lambda said: '"serving"' in said and '"following"' in said)
        yield process
