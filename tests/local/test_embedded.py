"""`embedded`: servers that end with the process that wanted them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.local import LocalSettings, down, embedded, status, up
from tests.local.conftest import runs
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

REDIS = frozenset({"redis"})
SCRIPT = """
import os, signal, sys
from pathlib import Path
from leftfold.local import embedded, status

if __name__ == "__main__":
    data = Path(sys.argv[1])
    with embedded(data, want=frozenset(sys.argv[3:])):
        fork = os.fork() if sys.argv[2] == "forks" else 0
        if sys.argv[2] == "forks" and not fork:
            signal.pause()
        seen = status(data)
        print(fork, seen.keeper, *(server.pid for server in seen.servers), flush=True)
        signal.pause()
"""


@pytest.mark.faults
@pytest.mark.parametrize("words", [("alone", "kafka", "redis"), ("forks", "redis")])
def test_nothing_is_left_when_the_parent_is_killed(
    words: tuple[str, ...], tmp_path: Path, script_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=script_environment) as parent:
        assert parent.stdout is not None
        fork, *pids = map(int, parent.stdout.readline().split())
        assert all(map(runs, pids))
        parent.kill()
    try:
        wait_until(lambda: not any(map(runs, pids)), f"the end of the orphans {pids}")
    finally:
        if fork:
            os.kill(fork, signal.SIGKILL)
    assert status(tmp_path).keeper is None
    assert not (tmp_path / "servers.json").exists()


def test_servers_end_with_the_block_and_also_when_it_raises(data: Path) -> None:
    def fail() -> None:
        with embedded(data, want=REDIS):
            pids.extend(server.pid for server in status(data).servers)
            raise KeyError("anything")

    pids: list[int] = []
    with pytest.raises(KeyError):
        fail()
    assert len(pids) == 1
    assert not runs(pids[0])


def test_a_directory_with_embedded_servers_is_refused_to_others(data: Path) -> None:
    settings = LocalSettings(data=data)
    with embedded(data, want=REDIS):
        with pytest.raises(ConfigurationError, match=f"process {os.getpid()} runs them for itself"):
            up(settings, want=REDIS)
        with pytest.raises(ConfigurationError, match="in use"):
            down(data)
        with pytest.raises(ConfigurationError, match="in use"), embedded(data, want=REDIS):
            pass


def test_a_directory_with_detached_servers_is_refused_to_embedded_ones(data: Path) -> None:
    up(LocalSettings(data=data), want=REDIS)
    with pytest.raises(ConfigurationError, match="leftfold down"), embedded(data, want=REDIS):
        pass
    assert down(data)
