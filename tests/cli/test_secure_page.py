"""The lines of the page on security that are there to be tried."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import ROOT, Shell

pytestmark = pytest.mark.servers
SECONDS = 240.0


@pytest.mark.faults
@pytest.mark.slow
def test_the_lines_to_try_secure_servers_and_a_worker_runs_with_its_rights_alone(tmp_path: Path) -> None:
    """What stands under "Try it here" of the page on security, with the decider of a new project."""
    section = (ROOT / "docs" / "security.md").read_text("utf-8").partition("\n## Try it here")[2]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    *typed, last = str(block).replace("baskets", "carts").splitlines()
    assert typed == ["leftfold up --secure", "leftfold topics ensure", "leftfold topics acl --apply"]
    assert Shell(tmp_path)("new", "shop").code == 0
    shell = Shell(tmp_path / "shop", {"PYTHON": sys.executable})
    try:
        result = {line: shell(*line.split()[1:]) for line in typed}
        assert [answer.code for answer in result.values()] == [0, 0, 0], result
        assert "rights in Kafka: leftfold topics acl --apply" in result["leftfold up --secure"].err
        assert re.search(r"^worker: [1-9]\d* rights granted, 0 there already$", result[typed[2]].out, re.MULTILINE)
        again = shell("topics", "acl", "--apply")
        assert re.search(r"^worker: 0 rights granted, [1-9]\d* there already$", again.out, re.MULTILINE), again
        # A shell reads the line; all that it starts ends with its session.
        line = f'leftfold() {{ "$PYTHON" -m leftfold.cli "$@"; }}\n{last}'
        with shell.log.open("wb") as log:
            where: dict[str, Any] = {"cwd": shell.place, "env": shell._environment, "stdout": log, "stderr": log}
            worker = subprocess.Popen(["bash", "-c", line], stdin=subprocess.DEVNULL, start_new_session=True, **where)
        try:
            shell.wait_until(worker, lambda said: '"serving"' in said)
        finally:
            os.killpg(worker.pid, signal.SIGTERM)
            worker.wait(SECONDS)
        denied = (shell.place / ".leftfold" / "kafka" / "logs" / "server.log").read_text("utf-8")
        assert [line for line in denied.splitlines() if "is Denied" in line] == []
    finally:
        shell("down")
