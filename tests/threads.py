"""Work on a thread of its own, for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["working"]

_END_SECONDS = 240.0


@contextmanager
def working(work: Callable[[threading.Event], object]) -> Iterator[list[BaseException]]:
    """Runs work that goes on until the event is set, which it is at the end of the block; what it failed of."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:  # whatever it is, the test looks at it
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(_END_SECONDS)
        assert not thread.is_alive(), "it does not end"
