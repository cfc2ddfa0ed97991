"""Damage to topics: cut, trimmed or recreated; and the operator who handles the refusals of workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.states import forget_states
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.ports.message_codec import is_last_of_decision
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.kafka.partitions import Partition, ProducedBatch, SimulatedTopic, StoredRecord

if TYPE_CHECKING:
    from leftfold.testing.simulation.deployment import Deployment

__all__ = ["TOPIC_KINDS", "Damage", "Operator"]


TOPIC_KINDS = ("cut events", "copy events", "cut commands", "remake commands", "trim commands", "misplace commands")
"""Faults of topics; they occur only in scenarios that name them."""
_LEAST = 3
"""The least offsets by which a cut is below the states; a smaller loss is not distinguished from none."""
_OUTAGE_SECONDS = 0.25


class Damage:
    """The damage to the topics of a world.

    Attributes:
        lost: ids of commands from before a topic was cut or states were rebuilt: their events or answers are missing,
            so no guarantee covers them.
        is_over: whether topics are not damaged from now on.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world, self._cluster = world, world.cluster
        self.lost = set[str]()
        self.is_over = False
        self._trimmed: list[tuple[Partition, StoredRecord]] = []

    def strike(self, kind: str) -> None:
        """Damages a topic of any category; topics are cut while no worker runs."""
        if self.is_over:
            return
        what, _, which = kind.partition(" ")
        names = sorted(name for name in self._cluster.topics if name.endswith(f".{which}"))
        if not names:
            return
        topic = self._cluster.topics[self._world.scheduler.random.choice(names)]
        match what:
            case "cut" | "copy":
                work = self._cut if what == "cut" else self._copy
                self._outage()
                self._world.scheduler.call_later(_OUTAGE_SECONDS, lambda: work(topic))
            case "remake":
                # Trimmed records of a deleted topic cannot be reported any more.
                self._trimmed = [one for one in self._trimmed if one[0].topic is not topic]
                self._cluster.delete(topic.name)
                self._cluster.create(topic.name, len(topic.partitions), topic.config)
            case "trim":
                self._trim(topic)
            case "misplace":
                self._misplace(topic)

    def unreported(self, trace: Sequence[tuple[float, str, str, Any]]) -> list[str]:
        """Commands that were trimmed, have no outcome, and were not reported by any worker."""
        reports = [details for _, _, what, details in trace if what == "commands lost to retention"]
        return [
            f"lost without a report: {_id(record)} at {record.offset} of {partition}"
            for partition, record in self._trimmed
            if not any(_covers(report, partition, record.offset) for report in reports)
            and not self._is_decided(partition, record)
        ]

    def _outage(self) -> None:
        for process in self._world.processes:
            if process.role in ("worker", "successor") and process.code is None:
                process.end(-9)

    def _cut(self, topic: SimulatedTopic) -> None:
        """Cuts a partition below the offset that its states have."""
        if self.is_over:
            return
        self._outage()
        category, _, which = topic.name.rpartition(".")
        checkpoints = {p.number: checkpoint[which] for p, checkpoint in self._marks(category)}
        choice = [
            (partition, end)
            for partition in topic.partitions
            for end in partition.settled
            if end <= checkpoints.get(partition.number, 0) - _LEAST and _is_whole(partition, end)
        ]
        if choice:
            partition, end = self._world.scheduler.random.choice(choice)
            self._lose(self._cluster.topics[f"{category}.commands"].partitions[partition.number])
            partition.cut(end)

    def _copy(self, topic: SimulatedTopic) -> None:
        """Recreates a log from a copy of its first records, like a backup: without transaction markers."""
        if self.is_over:
            return
        self._outage()
        self._cluster.delete(topic.name)
        copy = self._cluster.create(topic.name, len(topic.partitions), topic.config)
        self.forget(topic.name.rpartition(".")[0])
        for partition in topic.partitions:
            ends = [0, *(n for n, r in enumerate(partition.committed(), 1) if _is_last(r))]
            copied = partition.committed()[: self._world.scheduler.random.choice(ends)]
            for record in copied:
                fields = record.key, record.value, record.headers, record.timestamp
                copy.partitions[partition.number].append(ProducedBatch([fields]), record.timestamp)

    def forget(self, category: str) -> None:
        """Marks all commands of a category as lost: its states were rebuilt, so only events show what was answered."""
        for partition in self._cluster.topics[f"{category}.commands"].partitions:
            self._lose(partition)

    def _lose(self, commands: Partition) -> None:
        self.lost |= {_id(record) for record in commands.records}

    def _trim(self, topic: SimulatedTopic) -> None:
        """Deletes the first records of each partition, some of which may be unprocessed."""
        for partition in topic.partitions:
            before = self._world.scheduler.random.randint(partition.start, partition.end)
            self._trimmed += [(partition, record) for record in partition.records if record.offset < before]
            partition.delete(before)

    def _misplace(self, topic: SimulatedTopic) -> None:
        """A foreign client sends a command of a known key to a partition that the key does not belong to."""
        sent = [(partition, record) for partition in topic.partitions for record in partition.committed()]
        if found := [(partition, record) for partition, record in sent if record.key != b"@"]:
            partition, record = self._world.scheduler.random.choice(found)
            id_ = f"misplaced-{len(self.lost)}"
            self.lost.add(id_)
            left = [(name, value) for name, value in record.headers or () if name not in ("ce_id", "reply_to")]
            now = int(self._world.scheduler.now * 1000) + record.timestamp
            fields = record.key, record.value, [*left, ("ce_id", id_.encode())], now
            other = topic.partitions[(partition.number + 1) % len(topic.partitions)]
            other.append(ProducedBatch([fields]), now)

    def _marks(self, category: str) -> Iterator[tuple[Partition, dict[str, Any]]]:
        for topic in list(self._cluster.topics.values()):
            if topic.name.startswith(f"{category}.state.v"):
                for partition in topic.partitions:
                    if found := [r.value for r in partition.committed() if r.key == b"@"]:
                        yield partition, json.loads(found[-1] or b"{}")

    def _is_decided(self, partition: Partition, record: StoredRecord) -> bool:
        category, number = partition.topic.name.rpartition(".")[0], partition.number
        id_ = _id(record)
        for name, topic in self._cluster.topics.items():
            if name == f"{category}.events":
                headers = [dict(fact.headers or ()) for fact in topic.partitions[number].committed()]
                if any(found.get("ce_causationid") == id_.encode() for found in headers):
                    return True
            elif name.startswith(f"{category}.state.v"):
                for state in topic.partitions[number].committed():
                    if (
                        state.key != b"@"
                        and state.value
                        and any(a[0] == id_ for a in json.loads(state.value)["answered"])
                    ):
                        return True
        return False


def _id(record: StoredRecord) -> str:
    return (dict(record.headers or ()).get("ce_id") or b"").decode()


def _is_last(record: StoredRecord) -> bool:
    """Whether an event is the last of its decision; a copy holds whole decisions."""
    return is_last_of_decision(dict(record.headers or ()).get("ce_decision") or b"")


def _is_whole(partition: Partition, end: int) -> bool:
    """Whether an end splits no decision; in a copy no transaction shows it."""
    before = [record for record in partition.records if record.offset < end and record.outcome is None]
    return not before or _is_last(before[-1])


def _covers(report: Any, partition: Partition, offset: int) -> bool:
    first, _, last = report["offsets"].partition(" to ")
    is_there = (report["topic"], report["partition"]) == (partition.topic.name, partition.number)
    return is_there and int(first) <= offset <= int(last)


_LOOK_SECONDS = 0.5
_WORKING = ("worker", "successor")


class Operator:
    """An operator: when a worker refuses, stops the others, rebuilds the states, and starts all of them."""

    def __init__(self, deployment: Deployment, world: SimulatedWorld) -> None:
        self._deployment, self._world = deployment, world
        self._waiting: list[Callable[[], None]] = []
        self._is_at_work = False

    def takes(self, role: str, code: int | None, again: Callable[[], None]) -> bool:
        """Whether the operator restarts a process that has ended, instead of an immediate restart."""
        if role not in _WORKING or not (self._is_at_work or code == ConfigurationError.exit_code):
            return False
        self._waiting.append(again)
        if not self._is_at_work:
            self._is_at_work = True
            self._world.scheduler.call_later(_LOOK_SECONDS, self._begin)
        return True

    def _begin(self) -> None:
        self._deployment.keep("operator", "operator", self._operate)

    def _operate(self) -> None:
        if not self._is_at_work:
            return
        for app in [self._deployment.app]:
            for decider in app.deciders:
                self._rebuild(decider.name)
        self._is_at_work = False
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def _rebuild(self, category: str) -> None:
        """Rebuilds states as `leftfold state rebuild` does; of cut commands, all that exist are processed, or none."""
        from leftfold.testing.simulation.deployment import SETTINGS

        where = "kept"
        while True:
            for process in self._world.processes:
                if process.role in _WORKING and process.code is None and process.terminate is not None:
                    process.terminate()
            try:
                open_log = partial(KafkaLogReader, SETTINGS)
                forget_states(self._deployment.app, category, SETTINGS, open_log, where)  # type: ignore[arg-type]
            except ConfigurationError as error:
                self._deployment.note("not rebuilt", error)
                if "at work" not in str(error):
                    where = self._world.random.choice(("start", "end"))
                self._world.scheduler.wait(_LOOK_SECONDS)
            else:
                self._deployment.faults.damage.forget(category)
                self._deployment.note("rebuilt", f"states of {category}, commands: {where}")
                return
