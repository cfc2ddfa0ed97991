"""Starting, asking and stopping the keeper of a data directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from leftfold.errors import InfrastructureError
from leftfold.local import keeper
from leftfold.local.files import tail
from leftfold.local.record import Record, read_record, wait_free

__all__ = ["end_keeper", "start_keeper", "stop_keeper", "wait_answer"]

_ANSWER_SECONDS = 60.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.005


def start_keeper(data: Path, kind: str) -> subprocess.Popen[bytes]:
    """Start a keeper, which starts what `plan.json` lists.

    Returns:
        The keeper if it is embedded: it ends with its standard input. An ended go-between if it is detached.
    """
    for name in ("keeper.json", "servers.json"):
        (data / name).unlink(missing_ok=True)
    embedded = kind == keeper.EMBEDDED
    with (data / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(data), kind],
            stdin=subprocess.PIPE if embedded else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C at the terminal is for the application, which then stops its servers in order.
            start_new_session=True,
        )
    if not embedded:
        process.wait()
    return process


def wait_answer(data: Path, request: str) -> Record:
    """Wait until the keeper has started what a request asked for."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        record = read_record(data)
        if record is not None and record.request == request:
            return record
        time.sleep(_POLL_SECONDS)
    log = data / "keeper.log"
    raise InfrastructureError(f"the keeper of {data} did not answer for {_ANSWER_SECONDS:.0f} s; {log}:\n{tail(log)}")


def stop_keeper(data: Path, pid: int, seconds: float) -> None:
    """Make a keeper stop its servers within some seconds and end; after that, end them hard."""
    for number, wait in ((signal.SIGTERM, seconds + _GRACE_SECONDS), (signal.SIGKILL, _GRACE_SECONDS)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_free(data, wait):
            return
    raise InfrastructureError(f"the servers of {data} do not end; look at {data / 'keeper.log'}")


def end_keeper(data: Path, process: subprocess.Popen[bytes], seconds: float) -> None:
    """End the keeper that `start_keeper` started, whichever its kind."""
    if process.stdin is None:
        record = read_record(data)
        if record is not None:
            stop_keeper(data, record.pid, seconds)
        return
    # Not by closing its input alone: a child that this process has forked since holds that open too.
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds + _GRACE_SECONDS)
    process.kill()
    process.communicate()
