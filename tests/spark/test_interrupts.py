"""Ctrl-C at any moment of a start of Spark leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JNetworkError

from leftfold.errors import InfrastructureError
from leftfold.local import java_home
from leftfold.spark.core.task_io import cause_of

START = """
import signal
from leftfold.local import java_home
from leftfold.spark import SparkSettings, spark_session
print("starting", flush=True)
with spark_session(SparkSettings(master="local[1]", java_home=java_home())):
    print("started", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    "after", [pytest.param(0.6, marks=pytest.mark.faults), 1.2, pytest.param(1.8, marks=pytest.mark.faults)]
)
def test_an_interrupted_start_leaves_no_java_behind(after: float) -> None:
    java_home()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", START], **pipes, env={**os.environ}) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "starting\n"
        time.sleep(after)  # the moments themselves are the matter of this test
        started = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        assert run.wait(240.0) != 0
        told, ours = run.stderr.read(), "interrupted; Spark is starting and can be stopped only then"
        # A fast machine may have started it by 1.2 s; a slow one has begun nothing at 0.6.
        assert ours in told or ((after > 1 or not started) and "KeyboardInterrupt" in told), told
        assert psutil.wait_procs(started, timeout=240.0)[1] == []


@pytest.mark.parametrize(
    ("came", "told"), [(KeyboardInterrupt, KeyboardInterrupt), (RuntimeError, InfrastructureError)], ids=["", "twin"]
)
def test_ctrl_c_is_told_even_when_the_jvm_hangs_up_on_the_way_out(
    came: type[BaseException], told: type[BaseException]
) -> None:
    def asked() -> None:
        try:
            try:
                raise came
            finally:
                raise Py4JNetworkError("Answer from Java side is empty")  # as when PySpark forgets where it was called
        except Py4JNetworkError as error:
            raise cause_of(error) from error

    with pytest.raises(told):
        asked()
