"""One embedded server: killed or restarted where it stands, for tests and for repairs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from leftfold.errors import InfrastructureError
from leftfold.local.announcement import announce
from leftfold.local.launch import wait_answer
from leftfold.local.plan import write_plan
from leftfold.local.readiness import wait_ended, wait_ready
from leftfold.local.record import Record, read_record
from leftfold.local.servers import probe

__all__ = ["kill", "restart"]


def restart(data: Path, name: str, *, seconds: float = 180.0) -> None:
    """Stop one server in order if it runs, start it again on its port, and wait until it is ready."""
    data = data.resolve()
    record = _kept(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGTERM)
    if not wait_ended(data, name, seconds):
        raise InfrastructureError(f"the embedded {name} of {data} does not end within {seconds:.0f} s")
    request = write_plan(data, (), stop_seconds=seconds)
    os.kill(record.pid, signal.SIGHUP)
    wait_answer(data, request)
    wait_ready(data, name, probe(data, name), seconds)
    announce(data)


def kill(data: Path, name: str, *, seconds: float = 60.0) -> None:
    """End one server as by a crash and wait until it is gone; `up` or `restart` brings it back."""
    data = data.resolve()
    record = _kept(data, name)
    if name in record.running:
        os.kill(record.servers[name].pid, signal.SIGKILL)
    wait_ended(data, name, seconds)


def _kept(data: Path, name: str) -> Record:
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"no {name} is kept in {data}; start it: leftfold up")
    return record
