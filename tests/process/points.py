"""The named points of workers and routers of processes at which a test kills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leftfold.engine.processing.log_time import SILENCE
from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.recovery import TaskSpec
from leftfold.faust import router as clock
from leftfold.faust import router as routing
from leftfold.faust.router import InputProducer
from leftfold.faust.transport import CommittedConsumer, FetchProgress
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.transactions import Transactions
from leftfold.model.app import App
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord
from tests.worker.points import Points
from tests.worker.shop import FaultyShop

__all__ = ["ANSWERING", "ROUTER", "WORKER", "TradeShop", "pass_points"]

WORKER = (
    "marked",
    "fetched",
    "before state",
    "after state",
    "before command",
    "after command",
    "before timer",
    "after timer",
    "before send_offsets_to_transaction",
    "after send_offsets_to_transaction",
    "before commit_transaction",
    "after commit_transaction",
)
"""Of the worker of a process; `command` is what it sends, `timer` what says that one is due."""
ANSWERING = ("before answer", "after answer")
"""Of a decider's worker that answers a process."""
ROUTER = (
    "fetched",
    "before input",
    "after input",
    "input done",
    "before acknowledged",
    "after acknowledged",
    "before line",
    "after line",
    "before time",
    "after time",
)
"""Of a router; an input is done when it counts as routed, which is acknowledged later."""


class TradeShop(FaultyShop):
    """The client supplier of a worker of the trade, whose transactions pass a point before and after each kind of
    record.
    """

    def processor(self, app: App, task: TaskSpec) -> PartitionProcessor[Any]:  # type: ignore[override]
        return KafkaClientSupplier.processor(self, app, task)

    def transactions(self, app: App, task: TaskSpec) -> Transactions:
        found, points = super().transactions(app, task), self.points
        produce = found._produce

        def pointed(topic: str, records: Sequence[Outgoing], ends: dict[int, int] | None) -> None:
            kind = _kind(topic, task) if records else ""
            if kind and points.planned(f"before {kind}"):
                points.reach(f"before {kind}")
            produce(topic, records, ends)
            if kind and points.planned(f"after {kind}"):
                found._producer.flush(240.0)
                points.reach(f"after {kind}")

        found._produce = pointed  # type: ignore[method-assign]
        return found


def _kind(topic: str, task: TaskSpec) -> str:
    """What a worker writes there."""
    if ".state.v" in topic:
        return "state"
    if not topic.endswith(".commands"):
        return topic.rpartition(".")[2]
    if not task.time:
        return "answer"
    return "timer" if topic == task.log else "command"


def pass_points(points: Points, session: int, group: str) -> None:
    """Has this process's routers pass points, and not wait for time.

    Args:
        session: of their group, in ms. group: what is appended to its name.
    """
    _around(InputProducer, "draw_line", "line", points)
    _around(InputProducer, "tell", "time", points)
    patched: Any = (InputProducer, FetchProgress, routing, clock)
    send, written, fetched, made = (
        InputProducer.send,
        InputProducer._written,
        FetchProgress.fetched,
        patched[2].faust_app,
    )

    async def pointed_send(
        self: InputProducer, source: Any, out: Any, done: Callable[[RawRecord], None], topic: str
    ) -> None:
        if out is not None:
            points.reach("before input")
        await send(self, source, out, done, topic)

    def pointed_written(
        self: InputProducer, source: Any, sent: Any, done: Callable[[RawRecord], None], topic: str
    ) -> None:
        points.reach("after input")
        written(self, source, sent, done, topic)
        points.reach("input done")

    def pointed_fetched(self: FetchProgress, positions: Any, records: Any) -> None:
        fetched(self, positions, records)
        if records:
            points.reach("fetched")

    def hasty(id_: str, *args: Any, **options: Any) -> Any:
        app = made(id_ + group, *args, **options)
        app.conf.broker_session_timeout, app.conf.broker_heartbeat_interval = session / 1000, session / 4000
        return app

    patched[0].send, patched[0]._written = pointed_send, pointed_written
    patched[1].fetched, patched[2].faust_app = pointed_fetched, hasty
    _around(CommittedConsumer, "_commit", "acknowledged", points)
    patched[3].SILENCE = SILENCE / 30


def _around(owner: Any, name: str, called: str, points: Points) -> None:
    method = getattr(owner, name)

    async def pointed(*args: Any, **options: Any) -> Any:
        points.reach(f"before {called}")
        result = await method(*args, **options)
        points.reach(f"after {called}")
        return result

    setattr(owner, name, pointed)
