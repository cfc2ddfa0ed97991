"""The commands at the end of the tutorial, typed as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, Shell
from tests.project.test_documents import program

pytestmark = [pytest.mark.servers, pytest.mark.slow]

Wait = Callable[[Callable[[], object], str], None]
Started = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]


def typed_at_the_end() -> list[list[str]]:
    """The words of every command of the last section."""
    section = (ROOT / "docs" / "tutorial.md").read_text("utf-8").partition("\n## 8. ")[2]
    lines = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).splitlines()
    return [shlex.split(line)[1:] for line in lines]


def test_the_tutorial_ends_with_a_view_as_it_was(tmp_path: Path, wait_until: Wait, started: Started) -> None:
    program("docs/tutorial.md", tmp_path).rename(tmp_path / "cinema.py")
    shell, (dev, *rest) = Shell(tmp_path), typed_at_the_end()
    assert dev[0] == "dev"
    started(shell, [*dev, "--plain-logs"])
    wait_until(lambda: " serving " in shell.said() and " following " in shell.said(), "the App at work")
    free = iter((4, 4, 2))
    for words in rest:
        if words[0] == "get":
            seats = next(free)
            wait_until(lambda w=words, s=seats: re.search(rf"free\s+{s}\b", shell(*w).out), " ".join(words))  # type: ignore[misc]  # a lambda's own names
        else:
            done = shell(*words)
            assert done.code == 0, (words, done.err)
    assert next(free, None) is None
