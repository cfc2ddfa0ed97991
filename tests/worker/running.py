"""A worker on a thread of the test's own process, whose inside a test may look at; it waits for less long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leftfold.engine.processing.worker_tasks import TaskSpec
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier, gap_of_commands
from leftfold.kafka.worker.transactions import Transactions
from leftfold.kafka.worker.worker import Worker
from leftfold.model.app import App
from leftfold.ports.protocols import PartitionId
from tests.reports import Reports
from tests.servers import patient
from tests.threads import Background, bearing
from tests.waiting import wait_until
from tests.worker.bank import Bank

__all__ = ["CALM", "Haste", "HastySupplier", "Running"]


@dataclass(frozen=True)
class Haste:
    """Shorter waits than in production.

    Args:
        session: of the group, in ms. socket: librdkafka's timeout of one request, in ms.
        call: seconds that a transactional call may take. transaction: when the broker ends it, in ms.
        longest: seconds that a transaction is planned to last at most, 0 = what `transaction` says.
        check: seconds between looks at partition counts.
    """

    session: int = 1500
    socket: int = 10_000
    call: float = 10.0
    transaction: int = 10_000
    longest: float = 0.0
    check: float = 10.0


class HastySupplier(KafkaClientSupplier):
    """A client supplier whose clients wait for less long."""

    def __init__(self, settings: KafkaSettings, haste: Haste | None = None) -> None:
        self.haste = haste or Haste()
        super().__init__(settings, check_seconds=self.haste.check)

    def transactions(self, app: App, task: TaskSpec) -> Transactions:
        config = {
            **self._config,
            "batch.size": self.room(task),
            "socket.timeout.ms": self.haste.socket,
            "transaction.timeout.ms": self.haste.transaction,
        }
        id_ = f"{app.name}.{task.name}.{self._suffix}"
        transactions = Transactions(config, id_, self._watchdog, timeout=self.haste.call)
        transactions.longest = self.haste.longest or transactions.longest
        return transactions

    def _member(self, group: str, topic: str, leave: Callable[[list[PartitionId], bool], None]) -> GroupMember:
        session = {"session.timeout.ms": self.haste.session, "heartbeat.interval.ms": self.haste.session // 4}
        return GroupMember({**self._config, **session}, group, [topic], leave, gap_of_commands)


CALM = Haste(session=30_000)
"""It leaves its group by itself, and who stands still for a while is not thrown out."""


class Running(Background):
    """Runs while the block runs, which begins once every partition is served.

    Args:
        stopped: partitions that it is not waited for to serve.
    """

    def __init__(
        self,
        bank: Bank,
        address: str,
        *,
        haste: Haste | None = None,
        batch: int = 2000,
        stopped: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(lambda stop: self.worker.run())
        self._bank, self.stopped, self.reports = bank, stopped, Reports()
        self.shop = bearing(HastySupplier(patient(address), haste or CALM))
        self.worker = Worker(bank.app, bank.name, self.shop, stop=self.stop, batch=batch, report=self.reports)

    def wait_begun(self) -> None:
        self.wait_serving()

    def wait_serving(self) -> None:
        """Waits until it serves every partition that is not stopped; raises its failure."""
        every = frozenset(range(self._bank.app.partitions)) - self.stopped
        wait_until(lambda: self.going and self.worker.served == every, lambda: f"{every}: {self.reports}")

    def wait_failure(self) -> BaseException:
        """Waits until the worker has ended by an error, and returns it; the block then does not raise it."""
        wait_until(lambda: self.failures, lambda: f"a failure: {self.reports}")
        return self.failures.pop()
