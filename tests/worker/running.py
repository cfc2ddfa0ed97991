"""A worker on a thread of the test's own process, whose inside a test may look at."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.worker import Worker
from tests.waiting import wait_until
from tests.worker.bank import Bank
from tests.worker.shop import FaultyShop, Haste, Points

__all__ = ["Running"]


CALM = Haste(session=30_000)
"""It leaves its group by itself, and who stands still for a while is not thrown out."""


class Running:
    """Runs while the block runs; the block begins once every partition is served, and raises what the worker raised.

    Args:
        stopped: partitions that it is not waited for to serve.
    """

    def __init__(
        self,
        bank: Bank,
        address: str,
        *,
        haste: Haste | None = None,
        points: Points | None = None,
        batch: int = 2000,
        stopped: frozenset[int] = frozenset(),
    ) -> None:
        self._bank, self._stop, self.stopped = bank, threading.Event(), stopped
        self.reports: list[tuple[str, Mapping[str, Any]]] = []
        self.failure: BaseException | None = None
        self.shop = FaultyShop(KafkaSettings(bootstrap_servers=address), haste or CALM, points)
        self.worker = Worker(
            bank.app,
            bank.name,
            self.shop,
            stop=self._stop,
            batch=batch,
            report=lambda what, details: self.reports.append((what, details)),
        )
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_serving()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(240.0)
        assert not self._thread.is_alive(), "the worker does not end"
        if kind is None and self.failure is not None:
            raise self.failure

    def told(self, what: str) -> list[Mapping[str, Any]]:
        """What it has reported under this name."""
        return [details for name, details in list(self.reports) if name == what]

    def wait_serving(self) -> None:
        """Waits until it serves every partition that is not stopped; raises its failure."""
        every = frozenset(range(self._bank.app.partitions)) - self.stopped
        wait_until(lambda: self.going and self.worker.served == every, lambda: f"{every}: {self.reports}")

    def wait_failure(self, seconds: float = 240.0) -> BaseException:
        """Waits until the worker has ended by an error, and returns it; the block then does not raise it."""
        wait_until(lambda: self.failure is not None, lambda: f"a failure: {self.reports}", seconds)
        failure, self.failure = self.failure, None
        assert failure is not None
        return failure

    @property
    def going(self) -> bool:
        """True, unless the worker has failed: then that is raised."""
        if self.failure is not None:
            raise self.failure
        return True

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # whatever it is, the test's thread raises it
            self.failure = error
