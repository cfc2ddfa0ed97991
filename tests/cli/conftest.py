"""What the tests of the command line share: a clean place, a way to type commands, and projects."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from leftfold.runtime.rebuilding import spark_settings
from tests.cli.shell import MACHINE, Shell, Typing, typing_with
from tests.servers import Addresses

WAIT_SECONDS = 240.0
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the developer's own environment tells where servers or Apps are."""
    for name in list(os.environ):
        if name.startswith("LEFTFOLD_") and name not in MACHINE:
            monkeypatch.delenv(name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def typed(place: Path, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types a command in this process."""
    return typing_with(capsys)


@pytest.fixture
def module(place: Path) -> Callable[[str], str]:
    """Writes a module into the working directory under a name of its own, and returns that."""

    def write(source: str) -> str:
        name = f"written_{next(_numbers)}"
        (place / f"{name}.py").write_text(source, "utf-8")
        return name

    return write


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A project as `leftfold new shop` writes it, shared by a module's tests."""
    parent = tmp_path_factory.mktemp("new")
    assert Shell(parent)("new", "shop").code == 0
    return Shell(parent / "shop")


@pytest.fixture(scope="module")
def served(shop: Shell, empty_servers: Addresses) -> Shell:
    """The project and servers that are there already."""
    return shop.at(empty_servers)


@pytest.fixture(scope="module")
def up(shop: Shell) -> Iterator[Shell]:
    """The project with its own embedded servers."""
    started = shop("up")
    assert started.code == 0, started.err
    yield shop
    shop("down")


@pytest.fixture(scope="package")
def _spark() -> Iterator[None]:
    """Spark as commands start it, for those that are typed in this process."""
    from leftfold.spark import spark_session

    with spark_session(spark_settings(None)):
        yield


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]]:
    """Starts a long-running command whose output goes to `shell.log`; it is ended with the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(shell: Shell, words: Sequence[str]) -> subprocess.Popen[bytes]:
        processes.append(shell.start(words))
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        process.wait(WAIT_SECONDS)
