"""The bench of conformance scripts: what a script uses, whether a simulated or a real broker is behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

__all__ = [
    "SECONDS",
    "Bench",
    "Deed",
    "Outcome",
    "Script",
    "Step",
    "Strike",
    "described",
    "generation_of",
    "said",
    "shown",
]

SECONDS = 120.0
"""How long anything is waited for, so that a busy machine changes no outcome."""
Deed = Literal["hold", "lose", "silence", "repeat"]
"""What happens to a request: it waits until it is released; it never arrives; its answer is lost; it arrives twice."""
Step = Literal[
    "produce", "fetch", "offset commit", "offset fetch", "join", "heartbeat", "leave", "sync", "init producer",
    "add partitions", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit",
]  # fmt: skip
"""Requests by the names that the simulator has for them."""


class Strike(Protocol):
    """A fault under way."""

    @property
    def count(self) -> int:
        """How many requests it has met."""

    @property
    def handled(self) -> int:
        """How many of those the broker has answered, whether or not a client heard it."""

    def release(self) -> None:
        """Releases what is held; everything passes from now on."""


class Outcome(NamedTuple):
    """What a script saw, and what it should have seen."""

    seen: dict[str, Any]
    expected: dict[str, Any]


Script = Any
"""A function of a bench: `def name(bench: Bench) -> None`."""


@dataclass
class Bench(ABC):
    """Makes clients and topics, strikes requests, waits for conditions, and notes what a script sees."""

    outcome: Outcome = field(default_factory=lambda: Outcome({}, {}))
    _numbers: Any = field(default_factory=lambda: count(1))

    @abstractmethod
    def producer(self, *, far: bool = False, **config: Any) -> Any:
        """A producer; `_` in the name of a setting stands for a dot. Faults strike clients that are `far`."""

    @abstractmethod
    def consumer(self, *, far: bool = False, **config: Any) -> Any:
        """A consumer that reads committed records from the beginning and shows ends of partitions."""

    @abstractmethod
    def admin(self) -> Any:
        """An admin client."""

    @abstractmethod
    def strike(self, step: Step, deed: Deed, *, times: int = 1) -> Strike:
        """Plans a fault for the next requests of far clients."""

    @abstractmethod
    def wait(self, condition: Callable[[], Any], awaited: str) -> None:
        """Waits until something is so."""

    @abstractmethod
    def clock(self) -> float:
        """Seconds that have passed, by this world's own time."""

    @abstractmethod
    def clean(self, topic: str, end: int) -> None:
        """Has a compacted topic of one partition cleaned up to an offset."""

    @abstractmethod
    def restart(self) -> None:
        """Kills every broker and starts it again."""

    @abstractmethod
    def unique(self, kind: str) -> str:
        """A name that no other script has."""

    def saw(self, what: str, seen: Any, expected: Any) -> None:
        """Notes something that was seen, and what it should be."""
        assert what not in self.outcome.seen, what
        self.outcome.seen[what], self.outcome.expected[what] = deepcopy(seen), expected

    def writer(self, id_: str = "", **config: Any) -> Any:
        """A transactional producer that holds its id."""
        producer = self.producer(transactional_id=id_ or self.unique("id"), **config)
        producer.init_transactions(SECONDS)
        return producer

    def topic(self, partitions: int = 1, name: str = "", **config: str) -> str:
        """A new topic."""
        name = name or self.unique("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(SECONDS)
        probe = self.producer()
        self.wait(lambda: len(probe.list_topics(name, SECONDS).topics[name].partitions) == partitions, "a topic")
        return name

    def alter(self, topic: str, **config: str) -> None:
        """Changes settings of a topic."""
        entries: Any = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = self.admin()
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(SECONDS)

    def fill(self, topic: str, *values: str, partition: int = 0, key: str = "k", **more: Any) -> None:
        """Writes records outside any transaction."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, key, partition, **more)
        assert producer.flush(SECONDS) == 0

    def commit(self, writer: Any, topic: str, *values: str, partition: int = 0) -> None:
        """Writes records in a transaction of their own, and commits it."""
        self.open(writer, topic, *values, partition=partition)
        writer.commit_transaction(SECONDS)

    def open(self, writer: Any, topic: str, *values: str, partition: int = 0) -> None:
        """Begins a transaction and writes records of it."""
        failures: list[Any] = []
        writer.begin_transaction()
        for value in values:
            writer.produce(topic, value, "k", partition, on_delivery=lambda error, _: failures.append(error))
        assert writer.flush(SECONDS) == 0
        assert not any(failures), failures

    def reader(self, topic: str, *, partition: int = 0, offset: int = 0, **config: Any) -> Any:
        """A consumer that reads one partition, member of no group."""
        consumer = self.consumer(**config)
        consumer.assign([TopicPartition(topic, partition, offset)])
        return consumer

    def read(self, topic: str, *, partition: int = 0, committed: bool = True) -> list[Any]:
        """What is in a partition: values of records and, last, the offset of its end."""
        level = "read_committed" if committed else "read_uncommitted"
        reader = self.reader(topic, partition=partition, isolation_level=level)
        found = self.until_end(reader)
        reader.close()
        return found

    def until_end(self, reader: Any) -> list[Any]:
        """Takes messages up to the end of a partition: values, errors by name, and the offset of the end."""
        found: list[Any] = []
        self.wait(lambda: self._take(reader, found) and isinstance(found[-1], int), "the end of a partition")
        return found

    def taken(self, reader: Any, number: int) -> list[Any]:
        """Takes so many messages: values, errors by name, and ends as their offsets."""
        found: list[Any] = []
        self.wait(lambda: self._take(reader, found) and len(found) >= number, f"{number} messages")
        return found

    def _take(self, reader: Any, found: list[Any]) -> bool:
        message = reader.poll(0.05)
        if message is not None:
            found.append(shown(message))
        return message is not None

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Last stable offset and high watermark."""
        found = []
        for level in ("read_committed", "read_uncommitted"):
            consumer = self.consumer(isolation_level=level)
            found.append(consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)[1])
            consumer.close()
        return found[0], found[1]

    def wait_settled(self, topic: str, partition: int = 0) -> None:
        """Waits until no transaction is open in a partition: markers are written behind the answer to a commit."""
        level: dict[str, Any] = {"isolation_level": "read_uncommitted"}
        ends, stable = self.consumer(**level), self.consumer()
        place = TopicPartition(topic, partition)
        self.wait(
            lambda: ends.get_watermark_offsets(place, SECONDS)[1] == stable.get_watermark_offsets(place, SECONDS)[1],
            "every transaction to be over",
        )
        ends.close()
        stable.close()

    def committed(
        self, group: str, topic: str, partitions: Iterable[int] = (0,), *, seconds: float = SECONDS, **config: Any
    ) -> Any:
        """What a group has committed, [(offset, metadata)], or what is said instead; read once it is stable."""
        consumer = self.consumer(group_id=group, **config)
        try:
            places = consumer.committed([TopicPartition(topic, p) for p in partitions], seconds)
        except KafkaException as error:
            return described(error.args[0])
        finally:
            consumer.close()
        return [(place.offset, place.metadata) for place in places]

    def poll_all(self, *consumers: Any) -> list[Any]:
        """Has each of them poll once."""
        return [shown(message) for consumer in consumers if (message := consumer.poll(0.02)) is not None]

    def collect(self, into: list[Any], *consumers: Any) -> list[Any]:
        """Has each of them poll once, and adds what comes to a list."""
        into.extend(self.poll_all(*consumers))
        return into

    def count_members(self, group: str) -> int | None:
        """How many members a group has, None = there is no such group."""
        found = self.admin().list_groups(group, SECONDS)
        return len(found[0].members) if found else None

    def members(self, topic: str, group: str, number: int, **config: Any) -> list[Any]:
        """So many members of a group, once they own all partitions of a topic and have for a while."""
        members = [self.consumer(group_id=group, **config) for _ in range(number)]
        for member in members:
            member.subscribe([topic])
        self.wait_owned(members, len(self.admin().list_topics(topic, SECONDS).topics[topic].partitions))
        return members

    def wait_owned(self, members: Sequence[Any], partitions: int) -> None:
        """Waits until members own so many partitions between them, evenly, all in one generation."""

        def owned() -> bool:
            self.poll_all(*members)
            counts = [len(member.assignment()) for member in members]
            generations = {generation_of(member) for member in members}
            return sum(counts) == partitions and max(counts) - min(counts) <= 1 and len(generations) == 1

        self.wait(owned, f"{len(members)} members to own {partitions} partitions")


def generation_of(consumer: Any) -> int:
    """The generation that a consumer knows, -1 = none."""
    return int.from_bytes(consumer.consumer_group_metadata()[7:11], "little", signed=True)


def shown(message: Any) -> Any:
    """A message as an outcome: its value, its error's name, or the offset of an end."""
    error = message.error()
    if error is None:
        return None if message.value() is None else message.value().decode()
    return message.offset() if error.code() == KafkaError._PARTITION_EOF else described(error)


def described(error: KafkaError) -> str:
    """The name of an error with its flags."""
    flags = {"fatal": error.fatal(), "retriable": error.retriable(), "abortable": error.txn_requires_abort()}
    return " ".join([error.name(), *(name for name, is_so in flags.items() if is_so)])


def said(call: Callable[..., Any], *args: Any, **more: Any) -> str:
    """What comes of a call: "ok", or its error's name with its flags."""
    try:
        call(*args, **more)
    except KafkaException as error:
        return described(error.args[0])
    except (BufferError, RuntimeError, TimeoutError, ValueError) as error:
        return type(error).__name__
    return "ok"
