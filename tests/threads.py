"""Work on a thread of its own, for as long as a block lasts: anything, or workers and projectors on real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Self, TypeAlias

from leftfold import App
from leftfold.engine.views.projector import Projector
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.view import View
from leftfold.ports.protocols import LogReader, ViewStore
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["Background", "bearing", "deciding", "projecting", "wait_live", "working"]

Work: TypeAlias = Callable[[threading.Event], object]
"""Continues until the event is set."""


class Background:
    """Works, each on a thread, until the block ends.

    Args:
        raises: whether the end of the block raises what one of them failed of; it is in `failures` in any case.
    """

    def __init__(self, *works: Work, raises: bool = True) -> None:
        self.stop, self.failures, self._raises = threading.Event(), list[BaseException](), raises
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        try:
            self.wait_begun()
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def wait_begun(self) -> None:
        """Waits for what the block begins behind."""

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), f"{self} does not end"
        if kind is None and self._raises:
            assert self.going

    @property
    def going(self) -> bool:
        """True, unless one has failed: then that is raised."""
        if self.failures:
            raise self.failures[0]
        return True

    @property
    def is_alive(self) -> bool:
        """Whether one is at work."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, work: Work) -> None:
        try:
            work(self.stop)
        except BaseException as error:  # whatever it is, the test's thread raises it or looks at it
            self.failures.append(error)


@contextmanager
def working(work: Work) -> Iterator[list[BaseException]]:
    """Runs work until the block ends; what it failed of, which is not raised."""
    with Background(work, raises=False) as background:
        yield background.failures


def deciding(app: App, name: str, supplier: KafkaClientSupplier) -> Work:
    """A worker of a decider or a process."""
    return lambda stop: Worker(app, name, bearing(supplier), stop=stop).run()


def bearing(supplier: KafkaClientSupplier) -> KafkaClientSupplier:
    """The same, but a call that takes long on a busy machine does not end this process, of which others are part."""
    supplier._watchdog._expired = lambda what, seconds: None
    return supplier


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
