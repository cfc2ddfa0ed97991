"""The lines under "Try it here" of the page on security, typed as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, Shell

pytestmark = [pytest.mark.servers, pytest.mark.slow]

Wait = Callable[[Callable[[], object], str], None]
SECONDS = 240.0


def lines() -> list[str]:
    """What stands under the heading, with the decider of a new project in place of the reference application's."""
    section = (ROOT / "docs" / "security.md").read_text("utf-8").partition("\n## Try it here")[2]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return str(block).replace("baskets", "carts").splitlines()


@pytest.mark.faults
def test_servers_are_secured_and_a_worker_runs_with_its_rights_alone(tmp_path: Path, wait_until: Wait) -> None:
    assert Shell(tmp_path)("new", "shop").code == 0
    place = tmp_path / "shop"
    shell = Shell(place, {"PYTHON": sys.executable})
    *typed, last = lines()
    assert typed == ["leftfold up --secure", "leftfold topics ensure", "leftfold topics acl --apply"]
    try:
        told = {line: shell(*line.split()[1:]) for line in typed}
        assert [answer.code for answer in told.values()] == [0, 0, 0], told
        assert "rights in Kafka: leftfold topics acl --apply" in told["leftfold up --secure"].err
        assert re.search(r"^worker: [1-9]\d* rights granted, 0 there already$", told[typed[2]].out, re.MULTILINE)
        again = shell("topics", "acl", "--apply")
        assert re.search(r"^worker: 0 rights granted, [1-9]\d* there already$", again.out, re.MULTILINE), again
        worker = started(shell, last)
        try:
            wait_until(lambda: '"serving"' in shell.said() or worker.poll() is not None, "the worker at work")
            assert '"serving"' in shell.said(), shell.said()
        finally:
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait(SECONDS)
        log = (place / ".leftfold" / "kafka" / "logs" / "server.log").read_text("utf-8")
        assert [line for line in log.splitlines() if "is Denied" in line] == []
    finally:
        shell("down")


def started(shell: Shell, line: str) -> subprocess.Popen[bytes]:
    """Has a shell read a line; whatever it starts can be ended with it."""
    with shell.log.open("wb") as log:
        return subprocess.Popen(
            ["bash", "-c", f'leftfold() {{ "$PYTHON" -m leftfold.cli "$@"; }}\n{line}'],
            cwd=shell.place,
            env=shell._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
