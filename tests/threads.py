"""Work on a thread of its own, for as long as a block lasts: anything, or workers and projectors on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeAlias

from leftfold import App
from leftfold.engine.views.projector import Projector
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.view import View
from leftfold.ports.protocols import LogReader, ViewStore
from tests.waiting import wait_until

__all__ = ["all_working", "deciding", "projecting", "wait_live", "working"]

Work: TypeAlias = Callable[[threading.Event], object]

_END_SECONDS = 240.0


@contextmanager
def working(work: Work) -> Iterator[list[BaseException]]:
    """Runs work that continues until the event is set, which it is at the end of the block; what it failed of."""
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


@contextmanager
def all_working(*works: Work) -> Iterator[None]:
    """Runs each on a thread until the block ends; none of them may fail."""
    with ExitStack() as stack:
        failures = [stack.enter_context(working(work)) for work in works]
        yield
    assert not any(failures), failures


def deciding(app: App, name: str, supplier: KafkaClientSupplier) -> Work:
    """A worker of a decider or a process."""
    return lambda stop: Worker(app, name, supplier, stop=stop).run()


def projecting(views: Any, reader: Callable[[], LogReader], store: ViewStore, **options: Any) -> Work:
    """A projector of views."""

    def work(stop: threading.Event) -> None:
        with closing(Projector(views, reader, store, **options)) as projector:
            while not stop.is_set():
                projector.step()

    return work


def wait_live(store: ViewStore, views: Sequence[View[Any, Any]]) -> None:
    """Waits until readers see each view: a projector that starts behind events folds them first."""
    wait_until(lambda: all(store.registry(view.name).live_of(view.hash) for view in views), "every view to be live")
