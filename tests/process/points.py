"""The named points of workers and routers of processes at which a test kills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leftfold.engine.processing.log_time import SILENCE
from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.recovery import TaskSpec
from leftfold.kafka import process_router
from leftfold.kafka.group_member import GroupMember
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.transactions import Transactions
from leftfold.model.app import App
from leftfold.ports.outgoing import Outgoing
from tests.worker.points import Points
from tests.worker.shop import FaultyShop

__all__ = ["ANSWERING", "ROUTER", "WORKER", "TradeShop", "member_with", "pass_points"]

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
    _around(InputProducer, "mark_all", "line", points)
    _around(InputProducer, "report", "time", points)
    patched: Any = (InputProducer, GroupMember, process_router)
    send, delivered, fetch, commit = (
        InputProducer.send,
        InputProducer._delivered,
        GroupMember.fetch,
        GroupMember.try_commit,
    )

    def pointed_send(self: InputProducer, out: Any, *rest: Any) -> None:
        points.reach("before input")
        send(self, out, *rest)

    def pointed_delivered(self: InputProducer, written: Callable[[], None], error: Any, message: Any) -> None:
        is_input = message.topic().endswith(".commands") and message.key() != b"@"
        if is_input:
            points.reach("after input")
        delivered(self, written, error, message)
        if is_input:
            points.reach("input done")

    def pointed_fetch(self: GroupMember, limit: int, wait: float) -> Any:
        found = fetch(self, limit, wait)
        if found:
            points.reach("fetched")
        return found

    def pointed_commit(self: GroupMember, offsets: Any, *, wait: bool) -> bool:
        if not offsets:
            return commit(self, offsets, wait=wait)
        points.reach("before acknowledged")
        is_done = commit(self, offsets, wait=True)
        points.reach("after acknowledged")
        return is_done

    patched[0].send, patched[0]._delivered = pointed_send, pointed_delivered
    patched[1].fetch, patched[1].try_commit = pointed_fetch, pointed_commit
    patched[2].GroupMember = member_with(
        group, **{"session.timeout.ms": session, "heartbeat.interval.ms": session // 4}
    )
    patched[2].SILENCE = SILENCE / 30


def member_with(suffix: str = "", **settings: Any) -> Callable[..., GroupMember]:
    """Makes members of groups with other settings, and with a suffix of the group's name."""

    def made(config: Mapping[str, Any], group: str, *rest: Any, **options: Any) -> GroupMember:
        return GroupMember({**config, **settings}, group + suffix, *rest, **options)

    return made


def _around(owner: Any, name: str, called: str, points: Points) -> None:
    method = getattr(owner, name)

    def pointed(*args: Any, **options: Any) -> Any:
        points.reach(f"before {called}")
        result = method(*args, **options)
        points.reach(f"after {called}")
        return result

    setattr(owner, name, pointed)
