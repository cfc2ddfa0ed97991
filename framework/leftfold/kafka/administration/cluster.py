"""Administers a Kafka cluster: topics, partition counts, offsets, configurations and consumer groups."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import UNREACHABLE, QuietLog, Unreachable, code_of, kafka_error, translated
from leftfold.kafka.reachability import unreachable_reason
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.protocols import Closing

__all__ = ["ClusterAdmin"]

T = TypeVar("T")
Of = TypeVar("Of")
# A multiple of the request timeout, in case librdkafka does not keep its own deadlines.
_PATIENCE = 4
_SPEC: Any = OffsetSpec  # its methods are untyped
_LOADING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._PARTIAL,
    }
)
_LOGIN_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
_PAUSE = 0.05
_REPLICAS = 3
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class ClusterAdmin(Closing):
    """An admin client of a Kafka cluster, thread-safe and without a cache.

    Every method raises InfrastructureError when no broker answers within `settings.request_timeout`, and those that ask
    for offsets or for one topic also when a topic does not exist.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings, self._timeout = settings, settings.request_timeout
        # A bound method as callback would make a reference cycle, and the client would end only at garbage collection.
        self._errors: deque[KafkaError] = deque(maxlen=8)
        config: dict[str, Any] = {**settings.librdkafka(), "error_cb": self._errors.append}
        self._admin = AdminClient(config, logger=QuietLog("admin"))

    def close(self) -> None:
        """Serves pending callbacks; the connections close with the client object."""
        self._admin.poll(0)

    def brokers(self) -> int:
        """The number of brokers."""
        return len(self._asked("counting brokers", lambda: self._admin.list_topics(timeout=self._timeout)).brokers)

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """The partition count of each topic; a missing topic is left out."""
        return {name: len(topic.partitions) for name, topic in self._described(topics).items()}

    def replica_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """The replication factor of each topic, that of its partition with the fewest; a missing topic is left out."""
        found = self._described(topics)
        return {name: min((len(p.replicas) for p in topic.partitions), default=0) for name, topic in found.items()}

    def wanted_replicas(self) -> int:
        """The replication factor of new topics: that of the settings, or the number of brokers, three at most."""
        return self._settings.replication_factor or min(_REPLICAS, self.brokers())

    def partitions(self, topic: str) -> int:
        """The partition count of a topic."""
        return self._existing([topic])[topic]

    def topics(self) -> dict[str, int]:
        """All topics with their partition counts."""
        found = self._asked("listing topics", lambda: self._admin.list_topics(timeout=self._timeout)).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def ends(self, topics: Iterable[str]) -> Position:
        """The high watermark of every partition, records of open transactions included."""
        return self._offsets(topics, _SPEC.latest())

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The last stable offset of every partition, records of open transactions excluded."""
        return self._offsets(topics, _SPEC.latest(), IsolationLevel.READ_COMMITTED)

    def ask_stable_ends(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Future[Any]]:
        """Asks for the last stable offset of each partition, records of open transactions excluded; waits for none."""
        found = self._ask_offsets("asking for ends", places, _SPEC.latest(), IsolationLevel.READ_COMMITTED)
        return {(place.topic, place.partition): future for place, future in found.items()}

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset that every partition still holds."""
        return self._offsets(topics, _SPEC.earliest())

    def starts_at(self, topic: str, time: int) -> Position:
        """The first offset of every partition at or after a time in ms since 1970, or its end.

        Deleted records do not count; `leftfold.engine.log_gaps` also looks in the archive.
        """
        ends = self.ends([topic]).offsets[topic]  # asked for first: what is appended from now on lies behind them
        found = self._offsets([topic], _SPEC.for_timestamp(time)).offsets[topic]
        return Position({topic: {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}})

    def identity(self, topic: str) -> str:
        """The id of a topic in its cluster; a recreated topic has a different one."""
        found = self.identities([topic])
        if topic not in found:
            raise InfrastructureError(f"topic {topic} does not exist at {self._settings.bootstrap_servers}")
        return found[topic]

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic, '' from a cluster without ids; a missing topic is left out."""
        found = {name: str(topic.topic_id) for name, topic in self._described(topics).items()}
        return {name: "" if id_ == _NO_ID else id_ for name, id_ in found.items()}

    def unwritable(self, topics: Iterable[str]) -> list[str]:
        """The topics that this login may not write; missing topics are left out."""
        return [name for name in dict.fromkeys(topics) if not self._is_writable(name)]

    def _is_writable(self, topic: str) -> bool:
        asked = self._asked(
            f"asking for the rights to {topic}",
            lambda: self._admin.describe_topics(
                TopicCollection([topic]), include_authorized_operations=True, request_timeout=self._timeout
            ),
        )
        try:
            found = self._found(topic, asked[topic])
        except ConfigurationError:
            return False
        return found is None or AclOperation.WRITE in (found.authorized_operations or [AclOperation.WRITE])

    def delete_records(self, topic: str, before: Mapping[int, int]) -> Position:
        """Permanently deletes the records before these offsets; returns the new first offset of each partition."""
        doing = f"deleting records of {topic}"
        places = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        found = self._answered(
            doing,
            lambda: self._admin.delete_records(
                places, operation_timeout=self._timeout, request_timeout=2 * self._timeout
            ),
        )
        return Position({topic: {p.partition: deleted.low_watermark for p, deleted in found.items()}})

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The full configuration of each topic; all must exist."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
        if not resources:
            return {}
        asked = self._asked(
            "reading topic configurations",
            lambda: self._admin.describe_configs(resources, request_timeout=self._timeout),
        )
        found = {r.name: self._answer(f"reading the configuration of {r.name}", f) for r, f in asked.items()}
        return {name: {key: str(entry.value) for key, entry in entries.items()} for name, entries in found.items()}

    def set_configs(self, topic: str, config: Mapping[str, str]) -> None:
        """Changes only these settings of a topic."""
        doing = f"setting {', '.join(config)} of {topic}"
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._answered(doing, lambda: self._admin.incremental_alter_configs([resource], request_timeout=self._timeout))

    def max_batch_bytes(self, topics: Iterable[str]) -> int:
        """The maximum size of a record batch in bytes: the smallest `max.message.bytes` of these topics."""
        return min(int(config["max.message.bytes"]) for config in self.configs(topics).values())

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> bool:
        """Creates a topic; False if it exists already, perhaps created by another process at the same time."""
        new = NewTopic(topic, partitions, replication, config=dict(config))
        try:
            self._answered(
                f"making {topic}",
                lambda: self._admin.create_topics(
                    [new], operation_timeout=self._timeout, request_timeout=2 * self._timeout
                ),
            )
        except InfrastructureError as error:
            if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def delete(self, topic: str) -> None:
        """Deletes a topic with all its records, and waits until the brokers no longer list it.

        Raises:
            InfrastructureError: the topic does not exist, or is still there after `settings.request_timeout`.
        """
        doing = f"deleting {topic}"
        self._answered(
            doing,
            lambda: self._admin.delete_topics(
                [topic], operation_timeout=self._timeout, request_timeout=2 * self._timeout
            ),
        )
        deadline = time.monotonic() + self._timeout
        while self.partition_counts([topic]):
            if time.monotonic() > deadline:
                raise self._translated(KafkaError(KafkaError._TIMED_OUT), doing)
            time.sleep(_PAUSE)

    def owners(self, category: str, *, timeout: float | None = None) -> dict[str, int]:
        """The consumer groups of a category's workers with their member counts; `timeout` in seconds."""
        groups = self.groups(timeout=timeout)
        return {name: count for name, count in groups.items() if names.is_group_of(name, category)}

    def groups(self, *, timeout: float | None = None) -> dict[str, int]:
        """All consumer groups with their member counts; `timeout` in seconds."""
        return {group.id: len(group.members) for group in self._listed_groups(timeout)}

    def _listed_groups(self, timeout: float | None = None) -> list[Any]:
        """All consumer groups with their members.

        A broker that has just started has that time to load its groups. This uses the older `list_groups`, since
        `list_consumer_groups` and `describe_consumer_groups` abort the process when a broker restarts
        (librdkafka#4605).
        """
        seconds = timeout or self._timeout
        doing, deadline = "listing groups", time.monotonic() + seconds
        while True:
            self._admin.poll(0)
            try:
                found = self._listed(seconds)
                loading = next((group.error for group in found if group.error is not None), None)
                if loading is None:
                    return found
                raise KafkaException(loading)
            except KafkaException as error:
                if code_of(error) not in _LOADING or time.monotonic() > deadline:
                    raise self._translated(error, doing, seconds) from error
            time.sleep(_PAUSE)

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        names = list(dict.fromkeys(topics))
        if not names:
            return {}
        asked = self._asked(
            f"describing {', '.join(names)}",
            lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=self._timeout),
        )
        found = {name: self._found(name, future) for name, future in asked.items()}
        return {name: topic for name, topic in found.items() if topic is not None}

    def _listed(self, seconds: float) -> list[Any]:
        # With several threads this filter may stay; it hides one warning that only this call causes.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"list_groups\(\) is deprecated", DeprecationWarning)
            return self._admin.list_groups(timeout=seconds)

    def _existing(self, topics: Iterable[str]) -> dict[str, int]:
        """The partition counts of topics, all of which must exist."""
        wanted = list(dict.fromkeys(topics))
        counts = self.partition_counts(wanted)
        if missing := next((topic for topic in wanted if topic not in counts), ""):
            raise InfrastructureError(
                f"topic {missing} does not exist at {self._settings.bootstrap_servers}; "
                f"run the App that owns its category, or make its topics: leftfold topics ensure"
            )
        return counts

    def _offsets(
        self, topics: Iterable[str], spec: Any, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> Position:
        """One offset of every partition of some topics, asked for together."""
        counts = self._existing(topics)
        doing = f"asking for offsets of {', '.join(counts)}"
        places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
        if not places:
            return Position()
        found: dict[str, dict[int, int]] = {topic: {} for topic in counts}
        for place, future in self._ask_offsets(doing, places, spec, isolation).items():
            found[place.topic][place.partition] = self._answer(doing, future).offset
        return Position(found)

    def _ask_offsets(
        self, doing: str, places: Iterable[tuple[str, int]], spec: Any, isolation: IsolationLevel
    ) -> dict[TopicPartition, Future[Any]]:
        wanted = {TopicPartition(*place): spec for place in places}
        return self._asked(
            doing, lambda: self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=self._timeout)
        )

    def _found(self, topic: str, future: Future[Any]) -> Any | None:
        try:
            return self._answer(f"describing {topic}", future)
        except InfrastructureError as error:
            if code_of(error) in _ABSENT:
                return None
            raise

    def _asked(self, doing: str, ask: Callable[[], T]) -> T:
        # Log lines queue up in the client until it is polled.
        self._admin.poll(0)
        try:
            return ask()
        except KafkaException as error:
            raise self._translated(error, doing) from error

    def _answered(self, doing: str, ask: Callable[[], Mapping[Of, Future[T]]]) -> dict[Of, T]:
        """The answers to a request about several things; the first error among them is raised."""
        return {of: self._answer(doing, future) for of, future in self._asked(doing, ask).items()}

    def _answer(self, doing: str, future: Future[T]) -> T:
        try:
            return future.result(_PATIENCE * self._timeout)
        except KafkaException as error:
            raise self._translated(error, doing) from error
        except TimeoutError as error:
            raise self._translated(KafkaError(KafkaError._TIMED_OUT), doing) from error

    def _translated(
        self, error: KafkaException | KafkaError, doing: str, seconds: float | None = None
    ) -> LeftfoldError:
        settings, waited = self._settings, seconds or self._timeout
        if kafka_error(error).code() in UNREACHABLE:
            # A refused login is reported by the error callback only, while requests time out.
            self._admin.poll(0)
            for reported in self._errors:
                if reported.code() in _LOGIN_REFUSED:
                    return translated(reported, doing=doing)
        found = translated(
            error, doing=doing, brokers=settings.bootstrap_servers, waited=waited, advice=settings.advice
        )
        if isinstance(found, Unreachable) and (why := unreachable_reason(settings)):
            return Unreachable(
                f"no broker at {settings.bootstrap_servers} answered within {waited:g} s: {doing}: {why}; "
                f"{settings.advice}"
            )
        return found
