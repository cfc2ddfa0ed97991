"""Creates the Kafka clients of a worker from its settings, and reads the watermarks of routers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from leftfold.engine.archive.archived_log import ArchivedReader
from leftfold.engine.processing.log_time import Watermark
from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.worker_tasks import TaskSpec, task_for
from leftfold.errors import ConfigurationError, ContractError, Fenced, InfrastructureError, refused
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.kafka.worker.replies import Replies
from leftfold.kafka.worker.sent_records import SentRecords
from leftfold.kafka.worker.transactions import Transactions, Watchdog
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.bulk import OpenArchive
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import LogReader, PartitionId, Report

__all__ = ["TRANSACTION_SECONDS", "KafkaClientSupplier", "RestorePorts"]


class WatermarkReader:
    """Reads new watermarks from the topic `{process}.time`; without that topic event time does not advance.

    Args:
        partitions: returns the partition count of a topic, 0 if it does not exist.
    """

    def __init__(self, topic: str, open_log: Callable[[], LogReader], partitions: Callable[[str], int]) -> None:
        self._topic, self._open, self._partitions = topic, open_log, partitions
        self._log: LogReader | None = None

    def poll(self) -> list[Watermark]:
        """The watermarks written since the last call."""
        if self._log is None:
            if not self._partitions(self._topic):
                return []
            self._log = self._open()
            # Past watermarks have no use, and the topic deletes them.
            self._log.seek(self._log.ends([self._topic]))
        found = []
        for record in self._log.poll(1000, 0.0):
            with suppress(ContractError):  # newer code wrote it; event time stands still until one can be read
                found.append(Watermark.of(record))
        return found

    def close(self) -> None:
        """Closes the log reader."""
        if self._log is not None:
            self._log.close()


TRANSACTION_SECONDS = 10.0
"""The transaction timeout in seconds, after which a broker aborts a worker's open transaction."""


@dataclass(frozen=True)
class RestorePorts:
    """The consumers and readers that a restore needs.

    `member` is the worker's own consumer; `stable` and `uncommitted` are not members of its group, and see the last
    stable offsets and the ends with uncommitted records. `identities` returns the ids of the task's topics.
    """

    member: Consumer
    stable: Consumer
    uncommitted: Consumer
    open_log: Callable[[], LogReader]
    topics: Callable[[], Mapping[str, int]]
    producer: Callable[[str], Producer]
    write: Callable[[str, Outgoing], object]
    identities: Callable[[TaskSpec], Mapping[str, str]]

    def hanging(self, app: App, task: TaskSpec) -> Hanging:
        """The handler of hanging transactions on the topics of a category."""
        name, topics = task.name, self.topics()
        mine = names.state(name, task.version)
        states = (mine, *(t for t in topics if t != mine and t.startswith(f"{name}.state.v")))
        return Hanging(
            self.stable,
            self.uncommitted,
            self.producer,
            names.commands(name),
            states,
            task.writes,
            app.partitions,
            {topic: count for topic, count in topics.items() if topic.endswith(".commands")},
            f"/{app.name}/{name}".encode(),
            f"{app.name}.{name}.",
            "" if task.is_process else task.log,
            self.write,
        )


CHECK_SECONDS = 10.0


class KafkaClientSupplier:
    """Creates the Kafka clients of one processor; a random id of this start makes transactional ids unique.

    Args:
        max_bytes: maximum size of a record in bytes, headers included, if the topics allow it.
        check_seconds: how often partition counts are compared with the App's.
        archive: opens the archive of events; restores read events there that their topic has lost.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        max_bytes: int = 1_000_000,
        check_seconds: float = CHECK_SECONDS,
        archive: OpenArchive | None = None,
    ) -> None:
        self.settings, self._archive = settings, archive
        self._max_bytes, self._check_seconds = max_bytes, check_seconds
        self._suffix = f"{uuid4().hex}.0"
        self._config: dict[str, Any] = {**settings.librdkafka()}
        self._watchdog = Watchdog()
        self._checked = float("-inf")
        self._rooms: dict[str, int] = {}
        self._counts: dict[str, tuple[int, float]] = {}
        self._watching: list[Consumer] = []
        self._marks: WatermarkReader | None = None
        self._cluster: ClusterAdmin | None = None
        self.ids: Mapping[str, str] = {}
        """The ids of the topics that the worker reads and writes, by name."""

    def processor(self, app: App, task: TaskSpec) -> PartitionProcessor[Any]:
        """Creates the processor of a category or a process manager."""
        return task.processor(app, self.partitions, self.end, self.room(task), time.time)

    def times(self, task: TaskSpec) -> WatermarkReader | None:
        """The reader of watermarks; None for a task that does not use event time."""
        if task.is_process:
            self._marks = WatermarkReader(names.time(task.name), lambda: KafkaLogReader(self.settings), self.partitions)
        return self._marks

    def transactions(self, app: App, task: TaskSpec) -> Transactions:
        """Creates the transactions."""
        config = {**self._config, "batch.size": self.room(task)}
        return Transactions(config, self.transactional_id(app, task), self._watchdog)

    def sent_records(self, app: App, task: TaskSpec, transactions: Transactions, report: Report) -> SentRecords:
        """Creates what keeps the commands and answers that a worker sends."""
        return SentRecords(transactions, self._stable, f"/{app.name}/{task.name}".encode(), report)

    def transactional_id(self, app: App, task: TaskSpec) -> str:
        """The id `{app}.{category}.{uuid of this start}.0`."""
        return f"{app.name}.{task.name}.{self._suffix}"

    def within(self, seconds: float, what: str) -> AbstractContextManager[None]:
        """A context manager that ends this process if its block takes longer than `seconds`."""
        return self._watchdog.within(seconds, what)

    def replies(self, app: App, counts: Counter[str], report: Report) -> Replies:
        """Creates the producer of replies."""
        return Replies(self._config, self._partitions, counts, report, own=names.replies(app.name))

    def denied(self, doing: str, why: str, topics: Iterable[str]) -> ConfigurationError:
        """The error for a refused write, with the names of the topics that this login may not write.

        A transaction's own error does not name the topic. If no broker answers, all topics are named.
        """
        topics = list(topics)
        try:
            with ClusterAdmin(self.settings) as cluster:
                lacking = cluster.unwritable(topics) or topics
        except InfrastructureError:
            lacking = topics
        return refused(f"{doing}: {why}; this login may not write {', '.join(lacking)}")

    def member(self, group: str, topic: str, leave: Callable[[list[PartitionId], bool], None]) -> GroupMember:
        """Creates a consumer-group membership, and two consumers that use the group id without joining."""
        watching = {
            **self._config,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # They are polled only during a restore; the worker's own consumer logs lost brokers.
            "log_level": 2,
        }
        log = QuietLog("restore")
        self._stable = Consumer({**watching, "isolation.level": "read_committed"}, logger=log)
        self._uncommitted = Consumer({**watching, "isolation.level": "read_uncommitted"}, logger=log)
        self._watching += [self._stable, self._uncommitted]
        return self._member(group, topic, leave)

    def _member(self, group: str, topic: str, leave: Callable[[list[PartitionId], bool], None]) -> GroupMember:
        return GroupMember(self._config, group, [topic], leave, gap_of_commands)

    def restore_ports(self, member: GroupMember) -> RestorePorts:
        """The consumers and readers that a restore needs."""
        consumers = member.consumer, self._stable, self._uncommitted
        write = partial(write_record, self.settings)
        return RestorePorts(*consumers, self.open_log, self._topics, self._producer, write, self.identities)

    def identities(self, task: TaskSpec) -> Mapping[str, str]:
        """The current ids of the topics that a worker reads and writes.

        Raises:
            InfrastructureError: a topic was recreated while the worker used it; or no broker answers.
        """
        if self._cluster is None:
            self._cluster = ClusterAdmin(self.settings)
        topics = (names.commands(task.name), names.state(task.name, task.version), *task.rests)
        try:
            found = self._cluster.identities(topics)
        except ConfigurationError:
            # This login may not read the ids; then only the end offsets are compared.
            found = {}
        for topic, known in self.ids.items():
            if known and (now := found.get(topic, known)) != known:
                raise InfrastructureError(
                    f"topic {topic} was deleted and made again while this worker used it (its id was {known} and is "
                    f"{now}); this worker ends, and the next one checks the states against the new topic"
                )
        self.ids = {**self.ids, **found}
        return self.ids

    def open_log(self) -> LogReader:
        """Creates a reader of committed records, which uses the archive if there is one."""
        reader = KafkaLogReader(self.settings)
        return reader if self._archive is None else ArchivedReader(reader, self._archive)

    def stable(self, topic: str, partitions: list[int]) -> list[TopicPartition]:
        """Waits for the stable committed offsets, without pending transactions.

        Raises:
            Fenced: the broker answers, but the offsets stay unstable; the next owner ends the hanging transaction.
            InfrastructureError: no broker answered within 60 s.
        """
        wanted = [TopicPartition(topic, p) for p in partitions]
        deadline, unstable = time.monotonic() + 60.0, 0
        while time.monotonic() < deadline:
            try:
                found = self._stable.committed(wanted, timeout=4.0)
            except KafkaException:
                unstable += self._answers(wanted)
            else:
                if not any(tp.error for tp in found):
                    return found
            if unstable > 1:
                raise Fenced(f"a transaction on {topic}{sorted(partitions)} hangs; this process ends")
        raise InfrastructureError(f"the offsets of {topic} did not become stable within 60 s")

    def wait_ended(self, transactions: Transactions, ends: Mapping[PartitionId, int]) -> None:
        """Waits as `Transactions.wait_ended` does."""
        transactions.wait_ended(self._stable, ends)

    def check_counts(self, app: App, category: str) -> None:
        """Checks partition counts and topic ids, every `check_seconds`.

        Raises:
            ConfigurationError: a count differs from the App's; continuing would put one key into two partitions.
            InfrastructureError: a topic was recreated.
        """
        if time.monotonic() - self._checked < self._check_seconds:
            return
        task = task_for(app, category)
        for topic in (names.commands(category), *task.writes, names.state(category, task.version)):
            count = self._partitions(topic)
            if count and count != app.partitions:
                raise ConfigurationError(
                    f"{topic} has {count} partitions, but app {app.name} declares {app.partitions}; keys would move "
                    f"to other partitions. Say partitions={count} in the App, or take the added partitions away: "
                    f"moving streams to another count is a migration, which this version does not have"
                )
        if self.ids:
            self._check_same(task)
        self._checked = time.monotonic()

    def _check_same(self, task: TaskSpec) -> None:
        try:
            self.identities(task)
        except InfrastructureError as error:
            # No broker answered, so the topics are not known to differ.
            if error.__cause__ is None:
                raise

    def close(self) -> None:
        """Closes the shared clients; it may be called again."""
        for consumer in self._watching:
            consumer.close()
        self._watching.clear()
        if self._marks is not None:
            self._marks.close()
        if self._cluster is not None:
            self._cluster.close()
        self._watchdog.close()

    def partitions(self, topic: str) -> int:
        """The partition count of a topic, 0 if it does not exist, cached for `check_seconds`.

        Raises:
            InfrastructureError: no broker answers, and no count is cached.
        """
        now = time.monotonic()
        count, until = self._counts.get(topic, (0, 0.0))
        if count and now <= until:
            return count
        try:
            count = self._counted(topic)
        except KafkaException as error:
            if count:
                return count
            raise translated(error, doing=f"asking for the partitions of {topic}") from error
        self._counts[topic] = count, now + self._check_seconds
        return count

    def end(self, topic: str, partition: int) -> int:
        """The end offset of a partition, uncommitted records included.

        Raises:
            KafkaException: no broker answers; the worker retries the same commands.
        """
        _, end = self._uncommitted.get_watermark_offsets(TopicPartition(topic, partition), timeout=5.0)
        return int(end)

    def _partitions(self, topic: str) -> int:
        """The partition count of a topic, 0 if it does not exist or no broker answers."""
        try:
            return self._counted(topic)
        except KafkaException:
            return 0

    def _counted(self, topic: str) -> int:
        found = self._uncommitted.list_topics(topic, timeout=5.0).topics[topic]
        return 0 if found.error else len(found.partitions)

    def room(self, task: TaskSpec) -> int:
        """The maximum size of a record batch in bytes.

        A batch that the broker refuses aborts the transaction, and its retries too.
        """
        if self._rooms.get(task.name) is None:
            topics = (*task.writes, names.state(task.name, task.version))
            try:
                with ClusterAdmin(self.settings) as cluster:
                    self._rooms[task.name] = min(self._max_bytes, cluster.max_batch_bytes(topics))
            except ConfigurationError:
                # This login may not read configurations; brokers allow more than this by default.
                self._rooms[task.name] = self._max_bytes
        return self._rooms[task.name]

    def _answers(self, wanted: list[TopicPartition]) -> bool:
        try:
            self._uncommitted.committed(wanted, timeout=1.0)
        except KafkaException:
            return False
        return True

    def _topics(self) -> Mapping[str, int]:
        topics = self._uncommitted.list_topics(timeout=10.0).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def _producer(self, transactional_id: str) -> Producer:
        timeout = {"transaction.timeout.ms": int(TRANSACTION_SECONDS * 1000)}
        return Producer({**self._config, "transactional.id": transactional_id, **timeout}, logger=QuietLog("restore"))


def gap_of_commands(topic: str, partition: int, offset: int) -> InfrastructureError:
    """The error of a worker whose next command the topic no longer holds."""
    return InfrastructureError(
        f"{topic}[{partition}] does not hold offset {offset}, which comes next: retention took it, or the topic was "
        f"cut or made again. This worker ends, and the next one reports how many commands were lost"
    )
