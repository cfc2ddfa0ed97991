"""Servers that `leftfold dev` started, started again when they die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from leftfold.connection import ring
from leftfold.errors import LeftfoldError
from leftfold.logs import Report
from leftfold.supervisor import Backoff

__all__ = ["kept_up"]

_LOOK = 0.5


@contextmanager
def kept_up(servers: AbstractContextManager[object], data: Path, report: Report) -> Iterator[None]:
    """Runs embedded servers while the block runs, and starts one again that ends before, which it reports."""
    over = threading.Event()
    with servers:
        watch = threading.Thread(target=_watch, args=(data, over, report), name="servers", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()


def _watch(data: Path, over: threading.Event, report: Report) -> None:
    local, backoff = ring("leftfold.local"), Backoff()
    while not over.wait(_LOOK):
        try:
            for name, why in local.ended(data).items():
                report("restarting a server", {"server": name, "why": why})
                local.restart(data, name)
                report("server started again", {"server": name})
        except (LeftfoldError, OSError) as error:
            if not over.is_set():
                report("server does not start", {"why": str(error)})
                over.wait(backoff.pause(0.0))
