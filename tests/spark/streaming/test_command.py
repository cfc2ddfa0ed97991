"""`leftfold run VIEW --engine spark`: one process with Spark in it, started again when it dies, gone on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.domains.ledger import by_owner, summary
from tests.redis.server import RedisServer
from tests.spark.conftest import Shop
from tests.spark.streaming.streams import Streams
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

START_SECONDS = 240.0
VIEWS = (summary, by_owner)


def part_of(supervisor: int) -> psutil.Process:
    """The process in which views are folded."""
    (found,) = [p for p in psutil.Process(supervisor).children() if "leftfold.cli.run.child_process" in p.cmdline()]
    return found


@pytest.mark.faults
@pytest.mark.slow
def test_views_are_folded_until_ctrl_c_whatever_dies(
    start: Callable[..., Streams], shop: Shop, redis: RedisServer, tmp_path: Path
) -> None:
    streams = start(*VIEWS)
    for stream in streams.streams:
        stream.close()
    command = [sys.executable, "-m", "leftfold.cli", "run", *(view.name for view in VIEWS), "--engine", "spark"]
    command += ["--app", "tests.domains.ledger:app", "--trigger", "0.2", "--master", "local[2]", "--plain-logs"]
    command += ["--kafka", shop.kafka.bootstrap_servers, "--redis", redis.settings.url]
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out, env={**os.environ}, start_new_session=True)
    try:
        for seed in (101, 102):
            position = streams.write(seed, 60)
            wait_until(
                lambda at=position: process.poll() is not None or all(streams.covers(view, at) for view in VIEWS),  # type: ignore[misc]
                lambda: f"the views to be folded: {log.read_text()}",
                START_SECONDS,
            )
            assert process.poll() is None, log.read_text()
            streams.assert_equal_to_the_log()
            if seed == 101:
                part_of(process.pid).kill()
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in one.name() for one in family)
        process.send_signal(signal.SIGINT)
        assert process.wait(240.0) == 130, log.read_text()
        assert psutil.wait_procs(family, timeout=240.0)[1] == []
    finally:
        process.kill()
        process.wait()
    told = log.read_text()
    assert "restarting" in told
    assert told.count("starting Spark") == 2
