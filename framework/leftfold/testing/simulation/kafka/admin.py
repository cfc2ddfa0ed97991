"""A simulated `confluent_kafka.admin.AdminClient`: topics, offsets, configurations and groups."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException

from leftfold.testing.simulation.kafka.brokers import Home
from leftfold.testing.simulation.kafka.client import FOREVER, Metadata, SimulatedClient, cluster_metadata, failure
from leftfold.testing.simulation.kafka.group_coordinator import CommittedOffset
from leftfold.testing.simulation.kafka.partitions import BrokerError, Partition

__all__ = ["AdminClient", "AdminFuture"]

OUT_OF_RANGE, BAD_NAME, TOPIC_EXISTS, BAD_COUNT = 1, 17, 36, 37
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_EARLIEST, _LATEST = -2, -1
_SECONDS = 60.0


class AdminFuture:
    """The future of one admin request; waiting for it lets other tasks run."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._found: list[Any] = []
        self._waiting: list[Callable[[], None]] = []

    def set(self, value: Any) -> None:
        """Sets the answer."""
        self._found.append(value)
        for wake in self._waiting:
            wake()

    def done(self) -> bool:
        """Whether the answer has arrived."""
        return bool(self._found)

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the answer.

        Raises:
            KafkaException: the brokers' error. TimeoutError: no answer in time.
        """
        scheduler = self._client.scheduler
        if not self._found and (task := scheduler.current) is not None:
            turn = task.turn
            self._waiting.append(lambda: task.wake(turn))
            scheduler.wait(timeout)
        if not self._found:
            raise TimeoutError
        if isinstance(self._found[0], KafkaError):
            raise KafkaException(self._found[0])
        return self._found[0]


class AdminClient(SimulatedClient):
    """`confluent_kafka.admin.AdminClient` over the active world."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None, **more: Any) -> None:
        super().__init__({**config, **more}, logger, "admin")

    def __del__(self) -> None:
        self.is_closed = True

    def poll(self, timeout: float = -1) -> int:
        """Serves the waiting callbacks."""
        self.step("poll")
        return self.serve()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        """The metadata of brokers and topics."""
        self.step("list_topics")
        return cluster_metadata(self, topic, FOREVER if timeout < 0 else timeout)

    def describe_topics(self, topics: Any, request_timeout: float = _SECONDS, **_: Any) -> dict[str, AdminFuture]:
        """Ids and partitions of topics."""
        self.step("describe_topics")
        names: list[str] = topics.topic_names
        return {name: self._question((), partial(self._described, name), request_timeout) for name in names}

    def list_offsets(
        self,
        wanted: Mapping[Any, Any],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = _SECONDS,
        **_: Any,
    ) -> dict[Any, AdminFuture]:
        """Ends, starts, and offsets at a time; records of open transactions count unless only committed ones do."""
        self.step("list_offsets")

        def offset(partition: Partition, spec: Any) -> SimpleNamespace:
            at = spec._value
            if at == _LATEST:
                is_committed = isolation_level == IsolationLevel.READ_COMMITTED
                return SimpleNamespace(offset=partition.stable_end if is_committed else partition.end)
            return SimpleNamespace(offset=partition.start if at == _EARLIEST else partition.at(at))

        return {tp: self._at(tp, lambda p, s=spec: offset(p, s), request_timeout) for tp, spec in wanted.items()}  # type: ignore[misc]

    def delete_records(
        self, wanted: Sequence[Any], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[Any, AdminFuture]:
        """Deletes the records before offsets."""
        self.step("delete_records")

        def delete(partition: Partition, before: int) -> SimpleNamespace:
            if "delete" not in partition.topic.config["cleanup.policy"]:
                raise BrokerError(KafkaError.POLICY_VIOLATION)
            if before > partition.end:
                raise BrokerError(OUT_OF_RANGE)
            partition.delete(partition.end if before == _LATEST else before)
            return SimpleNamespace(low_watermark=partition.start)

        return {tp: self._at(tp, lambda p, b=tp.offset: delete(p, b), request_timeout) for tp in wanted}  # type: ignore[misc]

    def describe_configs(
        self, resources: Sequence[Any], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[Any, AdminFuture]:
        """The configurations of topics."""
        self.step("describe_configs")

        def described(name: str) -> dict[str, SimpleNamespace]:
            return {key: SimpleNamespace(value=value) for key, value in self.cluster.topic(name).config.items()}

        return {r: self._question((), lambda n=r.name: described(n), request_timeout) for r in resources}  # type: ignore[misc]

    def incremental_alter_configs(
        self, resources: Sequence[Any], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[Any, AdminFuture]:
        """Changes configurations of topics."""
        self.step("incremental_alter_configs")

        def alter(resource: Any) -> None:
            config = self.cluster.topic(resource.name).config
            config.update({entry.name: str(entry.value) for entry in resource.incremental_configs})

        return {r: self._question((), lambda r=r: alter(r), request_timeout) for r in resources}  # type: ignore[misc]

    def create_topics(
        self, topics: Sequence[Any], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[str, AdminFuture]:
        """Creates topics."""
        self.step("create_topics")

        def create(topic: Any) -> None:
            if topic.topic in self.cluster.topics:
                raise BrokerError(TOPIC_EXISTS)
            if not _NAME.fullmatch(topic.topic):
                raise BrokerError(BAD_NAME)
            if topic.num_partitions < 1:
                raise BrokerError(BAD_COUNT)
            self.cluster.create(topic.topic, topic.num_partitions, topic.config)

        return {t.topic: self._question((), lambda t=t: create(t), request_timeout) for t in topics}  # type: ignore[misc]

    def delete_topics(
        self, topics: Sequence[str], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[str, AdminFuture]:
        """Deletes topics with all their records."""
        self.step("delete_topics")

        def delete(name: str) -> None:
            self.cluster.topic(name)
            self.cluster.delete(name)

        return {name: self._question((), lambda n=name: delete(n), request_timeout) for name in topics}  # type: ignore[misc]

    def list_groups(self, group: str | None = None, timeout: float = -1) -> list[SimpleNamespace]:
        """The consumer groups and their members."""
        self.step("list_groups")

        def work() -> list[SimpleNamespace]:
            groups = [one for name, one in self.cluster.groups.items() if group in (None, name)]
            return [SimpleNamespace(id=one.name, members=list(one.members), error=None) for one in groups]

        found: list[SimpleNamespace] = self.asked("list groups", (), work, FOREVER if timeout < 0 else timeout)
        return found

    def alter_consumer_group_offsets(
        self, wanted: Sequence[Any], request_timeout: float = _SECONDS, **_: Any
    ) -> dict[str, AdminFuture]:
        """Sets the offsets of a group without members."""
        self.step("alter_consumer_group_offsets")

        def alter(one: Any) -> Any:
            offsets = {(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata) for tp in one.topic_partitions}
            code = 0
            try:
                self.cluster.group(one.group_id).commit("", -1, offsets)
            except BrokerError as refused:
                code = refused.code
            places = [
                SimpleNamespace(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=tp.offset,
                    metadata=tp.metadata,
                    error=failure(code) if code else None,
                )
                for tp in one.topic_partitions
            ]
            return SimpleNamespace(group_id=one.group_id, topic_partitions=places)

        return {
            one.group_id: self._question(("group", one.group_id), lambda o=one: alter(o), request_timeout)  # type: ignore[misc]
            for one in wanted
        }

    def _described(self, name: str) -> SimpleNamespace:
        topic = self.cluster.topic(name)
        partitions = [SimpleNamespace(id=partition.number) for partition in topic.partitions]
        return SimpleNamespace(topic_id=topic.id_, name=name, partitions=partitions)

    def _at(self, tp: Any, work: Callable[[Partition], Any], seconds: float) -> AdminFuture:
        home = "partition", tp.topic, str(tp.partition)
        if tp.topic not in self.cluster.topics:
            return self._question((), _no_leader, seconds)
        return self._question(home, lambda: work(self.cluster.partition(tp.topic, tp.partition)), seconds)

    def _question(self, home: Home, work: Callable[[], Any], seconds: float) -> AdminFuture:
        answer = AdminFuture(self)

        def done(value: Any) -> None:
            code = value.code if isinstance(value, BrokerError) else 0
            answer.set(failure(code, "asked as admin") if code else value)

        self.ask("admin", home, lambda reply: reply(work()), done, seconds)
        return answer


def _no_leader() -> None:
    raise BrokerError(KafkaError._NOENT)
