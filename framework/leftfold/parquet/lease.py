"""One archiver at a time for each topic: whoever works says so in a file, and for how long it counts.

What the archive holds does not rest on this (manifests only add to each other); it spares the work of a second run.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import TypedDict

from leftfold.errors import Fenced, InfrastructureError
from leftfold.parquet.place import Place

__all__ = ["LEASE_SECONDS", "Lease", "leased"]

LEASE_SECONDS = 30.0
_FILE = "_lease.json"


class _Told(TypedDict):
    host: str
    process: int
    token: str
    until: float


class Lease:
    """A claim to a topic's folder; `renew` it at least every few seconds.

    Args:
        clock: seconds since 1970, the same everywhere within a few seconds.
    """

    def __init__(self, place: Place, topic: str, *, clock: Callable[[], float] = time.time) -> None:
        self._place, self._path, self._clock = place, f"{topic}/{_FILE}", clock
        self._token, self._until = token_hex(8), 0.0

    def take(self) -> None:
        """Claims the folder.

        Raises:
            InfrastructureError: somebody else holds it.
        """
        held = self._holder()
        if held is not None:
            raise InfrastructureError(
                f"{self._place.name}/{self._path}: process {held['process']} on {held['host']} works on this archive; "
                f"wait for it, or, if it is dead, {max(0.0, held['until'] - self._clock()):.0f} s"
            )
        self._write()
        self._check()

    def renew(self) -> None:
        """Makes the claim last on, once a third of it is over.

        Raises:
            Fenced: somebody else has taken the folder meanwhile, since this process did not get around to it in time.
        """
        if self._clock() > self._until - LEASE_SECONDS * 2 / 3:
            self._check()
            self._write()

    def give_up(self) -> None:
        """Lets others work, unless it is theirs already."""
        told = self._told()
        if told is not None and told["token"] == self._token:
            self._place.remove(self._path)

    def _check(self) -> None:
        told = self._told()
        if told is None or told["token"] != self._token:
            raise Fenced(f"{self._place.name}/{self._path}: another archiver has taken over; this one ends")

    def _write(self) -> None:
        self._until = self._clock() + LEASE_SECONDS
        told = _Told(host=socket.gethostname(), process=os.getpid(), token=self._token, until=self._until)
        self._place.put(self._path, json.dumps(told).encode())

    def _told(self) -> _Told | None:
        """The claim in the file; one that nobody can read is none."""
        text = self._place.read(self._path)
        try:
            told = json.loads(text or b"{}")
            return _Told(
                host=str(told["host"]), process=int(told["process"]), token=told["token"], until=float(told["until"])
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _holder(self) -> _Told | None:
        told = self._told()
        if told is None or told["until"] < self._clock():
            return None
        return None if told["host"] == socket.gethostname() and not _lives(told["process"]) else told


@contextmanager
def leased(place: Place, topic: str) -> Iterator[Lease]:
    """A claim that lasts as long as the block."""
    lease = Lease(place, topic)
    lease.take()
    try:
        yield lease
    finally:
        lease.give_up()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
