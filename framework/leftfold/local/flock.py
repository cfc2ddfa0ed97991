"""A lock between processes that ends with its holder, however the holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leftfold.errors import InfrastructureError

__all__ = ["held", "is_held"]

_POLL_SECONDS = 0.02


@contextmanager
def held(path: Path, *, seconds: float, busy: str) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Raises:
        InfrastructureError: with the message `busy`, when somebody else held it for that many seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise InfrastructureError(busy)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Say whether a live process holds the lock file; asking never makes another asker see it held."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
