"""Waiting until a server that was started can work, or has failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from leftfold.errors import InfrastructureError
from leftfold.local.files import tail
from leftfold.local.record import ServerRecord, read_record
from leftfold.veil import veiled

__all__ = ["Probe", "cause", "wait_ended", "wait_ready"]

Probe = Callable[[str, float], bool]
"""Asks the server at an address, for at most some seconds, whether it is ready for work."""

_FIRST_PROBE_SECONDS = 0.2
_LAST_PROBE_SECONDS = 5.0
_POLL_SECONDS = 0.02


def wait_ready(data: Path, name: str, probe: Probe, seconds: float) -> str:
    """Wait until the probe finds a server ready and return its address.

    Raises:
        InfrastructureError: it ended, or took longer; the message shows the end of its log.
    """
    deadline = time.monotonic() + seconds
    # Short at first: a client that comes too early waits longer before its next attempt than a new one needs.
    patience = _FIRST_PROBE_SECONDS
    while True:
        server = _server(data, name)
        if server.exit is not None:
            raise InfrastructureError(f"the embedded {name} ended with {server.exit} at its start: {cause(server)}")
        started = time.monotonic()
        if probe(server.address, patience):
            return server.address
        if time.monotonic() - started >= patience:
            patience = min(2 * patience, _LAST_PROBE_SECONDS)
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the embedded {name} at {veiled(server.address)} is not ready after {seconds:.0f} s: {cause(server)}"
            )
        time.sleep(_POLL_SECONDS)


def wait_ended(data: Path, name: str, seconds: float) -> bool:
    """Wait until the keeper has seen a server end; return whether it has."""
    deadline = time.monotonic() + seconds
    while _server(data, name).exit is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def cause(server: ServerRecord) -> str:
    """Return the end of a server's logs, of this start only, with what to do about the commonest failure."""
    ends = ((log, tail(log, begin)) for log, begin in zip(server.logs, server.begins, strict=True))
    told = "\n".join(f"{log}:\n{end}" for log, end in ends if end)
    if "No space left on device" in told:
        return f"the disk is full; free some space or set LEFTFOLD_DATA to a larger one\n{told}"
    return told or f"it wrote no log; see {server.logs[0]}"


def _server(data: Path, name: str) -> ServerRecord:
    record = read_record(data)
    if record is None or name not in record.servers:
        raise InfrastructureError(f"no {name} is kept in {data} any more; start it: leftfold up")
    return record.servers[name]
