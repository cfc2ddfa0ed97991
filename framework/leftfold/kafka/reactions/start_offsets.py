"""The start offsets of reactions: a reaction that lost its committed offset stops instead of skipping events."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leftfold.engine.log_gaps import offsets_for_time
from leftfold.engine.processing.command_wire import now_text
from leftfold.engine.reactions.deadline_executor import CLEAN
from leftfold.engine.reactions.reaction_processor import Handoff
from leftfold.errors import ConfigurationError, InfrastructureError, LogGap
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import write_records
from leftfold.kafka.consumer_group import member_config
from leftfold.kafka.errors import QuietLog, code_of, committed_offsets, translated
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.model.reaction import Reaction, Since
from leftfold.ports.bulk import OpenArchive, read_whole
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId

__all__ = ["RecordedPlaces", "StartLost", "StartOffsets", "has_members", "is_started"]

_log = logging.getLogger(__name__)
_SECONDS, _PATIENCE_SECONDS = 20.0, 30.0


class RecordedPlaces:
    """The compacted topic `{reaction}.begun`: an offset for each partition of some topics.

    Group offsets alone are not enough: brokers delete them when the group is not used for a week.
    """

    def __init__(self, topic: str, settings: KafkaSettings) -> None:
        self._topic, self._settings = topic, settings
        self.ids: dict[PartitionId, str] = {}
        """The topic ids in the records that were read; older records have none."""

    def read(self) -> dict[PartitionId, int]:
        """Reads the last offset written for each partition; tombstones and records of other clients are passed over.

        Raises:
            InfrastructureError: no broker answers.
        """
        found: dict[PartitionId, int] = {}
        strange: list[int] = []
        with closing(KafkaLogReader(self._settings)) as log:
            ends, starts = log.ends([self._topic]), log.starts([self._topic])
            # A retry that was killed may have left a transaction open, which brokers end within some 20 s.
            for record in read_whole(log, starts, ends, patience=_PATIENCE_SECONDS):
                try:
                    topic, _, partition = (record.key or b"").decode().rpartition("/")
                    fields = json.loads(record.value or b"")
                    found[topic, int(partition)] = int(fields["offset"])
                    self.ids[topic, int(partition)] = str(fields.get("topic_id", ""))
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    strange.append(record.offset)
        if strange:  # compaction may keep them for ever
            where = f"{self._topic}[0]@{strange[-1]}"
            _log.warning("%s is no offset of a reaction, and is passed over; %d such records", where, len(strange))
        return found

    def write(self, offsets: Mapping[PartitionId, int], ids: Mapping[str, str] | None = None) -> None:
        """Writes offsets with the known topic ids, and waits for their delivery.

        Raises:
            InfrastructureError: they are not written. ConfigurationError: this login may not write them.
        """
        if records := self.records(offsets, ids):
            doing = f"writing an offset of the reaction to {self._topic}"
            write_records(self._settings, self._topic, records, doing=doing)

    def records(
        self, offsets: Mapping[PartitionId, int], ids: Mapping[str, str] | None = None, **more: str
    ) -> list[Outgoing]:
        """The records of offsets with the known topic ids; `more` are further fields of each."""
        found: list[Outgoing] = []
        for (topic, partition), offset in sorted(offsets.items()):
            fields: dict[str, Any] = {"offset": offset, "at": now_text().decode(), **more}
            if id_ := (ids or {}).get(topic, ""):
                fields["topic_id"] = self.ids[topic, partition] = id_
            value = json.dumps(fields, separators=(",", ":")).encode()
            found.append(Outgoing(0, f"{topic}/{partition}".encode(), value, ()))
        return found


def is_started(settings: KafkaSettings, reaction: str, topic: str) -> bool:
    """Whether a reaction has ever begun to read a topic, also where Kafka has deleted its offsets."""
    begun = names.begun(reaction)
    with ClusterAdmin(settings) as cluster:
        is_there = bool(cluster.partition_counts([begun]))
    return is_there and any(read == topic for read, _ in RecordedPlaces(begun, settings).read())


_HAS_MEMBERS = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS,
     KafkaError.NON_EMPTY_GROUP}
)  # fmt: skip


class StartLost(InfrastructureError):
    """A reaction has begun, and Kafka has deleted its offset."""


class StartOffsets:
    """The start offsets of a reaction's partitions: the group's offsets, set once and recorded in a topic.

    Args:
        open_archive: opens the archive, for a start at a time whose events a topic has lost.
    """

    def __init__(
        self, app: App, reaction: Reaction[Any], settings: KafkaSettings, open_archive: OpenArchive | None = None
    ) -> None:
        self._app, self._reaction, self._settings, self._open_archive = app, reaction, settings, open_archive
        self._places = RecordedPlaces(names.begun(reaction.name), settings)
        self._known: dict[PartitionId, int] = {}

    def find(self, consumer: Consumer, places: Collection[PartitionId]) -> dict[PartitionId, Handoff]:
        """The next offset of each partition, with the metadata that the last owner committed.

        A partition without a committed or recorded offset starts at the reaction's `since`.

        Raises:
            ConfigurationError: a topic is not the one that was read, or ends before the committed offset.
            StartLost: the group has no offset although the reaction has begun.
            InfrastructureError: no broker answers.
        """
        doing = f"asking where reaction {self._reaction.name} stands"
        try:
            committed = committed_offsets(consumer, [TopicPartition(*place) for place in places], _SECONDS)
        except KafkaException as error:
            raise translated(error, doing=doing) from error
        found = {
            (tp.topic, tp.partition): Handoff(tp.offset, tp.metadata or CLEAN) for tp in committed if tp.offset >= 0
        }
        is_known = set(places) <= found.keys() & self._known.keys()
        if not is_known:
            self._known |= self._places.read()
        self._check_same(consumer, places, found)
        if is_known:
            return found
        missing = [place for place in places if place not in found]
        if lost := sorted(self._known.keys() & set(missing)):
            raise StartLost(self._is_lost(lost[0]))
        starts = self.starts(consumer, missing, self._reaction.since)
        if starts:
            self._commit(consumer, starts)
        found |= {place: Handoff(offset, CLEAN) for place, offset in starts.items()}
        self.record({place: left.offset for place, left in found.items() if place not in self._known})
        return found

    def starts(self, consumer: Consumer, places: Collection[PartitionId], since: Since) -> dict[PartitionId, int]:
        """The start offsets of partitions for `since`: the current end, 0, or the first record at or after a time.

        Raises:
            LogGap: the topic has lost records from there on, or around that time. InfrastructureError: no broker
                answers.
        """
        if since == "end":
            return {place: self._end(consumer, place) for place in places}
        if not places:
            return {}
        topics, position = sorted({topic for topic, _ in places}), Position()
        with ClusterAdmin(self._settings) as cluster:
            if isinstance(since, datetime):
                moment = int(since.timestamp() * 1000)
                position = Position.union(offsets_for_time(cluster, t, moment, self._open_archive) for t in topics)
            held = cluster.starts(topics)
        for topic, partition in sorted(places):
            offset, low = position.next_offset(topic, partition), held.next_offset(topic, partition)
            if offset < low:
                name = self._reaction.name
                raise LogGap(
                    f"reaction {name} would begin at {topic}[{partition}]@{offset}, but the topic holds only offsets "
                    f"from {low} on, and reactions read no archive. Begin it at the first event that is there: "
                    f"leftfold reactions begin {name} --since start"
                )
        return {place: position.next_offset(*place) for place in places}

    def record(self, offsets: Mapping[PartitionId, int]) -> None:
        """Records the start offsets of these partitions, before any of their events is handled.

        Raises:
            InfrastructureError: it is not written.
        """
        self._places.write(offsets, self._identities(offsets))
        self._known |= offsets

    def again(self, since: Since) -> dict[PartitionId, int]:
        """Moves the reaction to new offsets, whatever it has done; none of its processes may be running.

        Args:
            since: as of reactions, but "start" is the first event that each partition holds.

        Raises:
            ConfigurationError: one is running. LogGap: the topic has lost records from there on, or around that time.
        """
        with self._bystander() as consumer:
            places = self.everywhere()
            starts = self._held(places) if since == "start" else self.starts(consumer, places, since)
            try:
                self._commit(consumer, starts)
            except InfrastructureError as error:
                if has_members(error):
                    name = self._reaction.name
                    raise ConfigurationError(
                        f"reaction {name} is running; stop it first, then begin it again"
                    ) from error
                raise
        self.record(starts)
        return starts

    def begin(self) -> None:
        """Sets the start offsets of a reaction that has never run, before the events for it are written.

        Raises:
            StartLost: its offset is lost. InfrastructureError: no broker answers.
        """
        with self._bystander() as consumer:
            try:
                self.find(consumer, self.everywhere())
            except InfrastructureError as error:
                # If the reaction is running already, the process that gets a partition sets its start offset.
                if not has_members(error):
                    raise

    def everywhere(self) -> list[PartitionId]:
        """All partitions that the reaction reads."""
        with ClusterAdmin(self._settings) as cluster:
            counts = cluster.partition_counts(names.events(category) for category in self._reaction.categories)
        return [(topic, partition) for topic, count in counts.items() for partition in range(count)]

    def _held(self, places: Collection[PartitionId]) -> dict[PartitionId, int]:
        """The first offset that each partition holds."""
        with ClusterAdmin(self._settings) as cluster:
            held = cluster.starts({topic for topic, _ in places})
        return {place: held.next_offset(*place) for place in places}

    def _bystander(self) -> AbstractContextManager[Consumer]:
        """A consumer with the group id that does not join the group."""
        group = names.reacting(self._app.name, self._reaction.name)
        return closing(Consumer(member_config(self._settings.librdkafka(), group), logger=QuietLog("reaction")))

    def _check_same(
        self, consumer: Consumer, places: Collection[PartitionId], found: Mapping[PartitionId, Handoff]
    ) -> None:
        """Checks that the topics are the ones that were read, and are not shorter; else offsets are invalid.

        Topic ids that are not recorded yet are recorded here.
        """
        name, ids = self._reaction.name, self._identities(places)
        advice = f"Say where it begins: leftfold reactions begin {name} --since TIME"
        for topic, partition in sorted(places):
            known, now = self._places.ids.get((topic, partition), ""), ids.get(topic, "")
            if known and now and known != now:
                raise ConfigurationError(
                    f"reaction {name} has read a topic {topic} with id {known}, and the one that is there has id "
                    f"{now}: its offsets mean nothing in this one. {advice}"
                )
            left = found.get((topic, partition))
            if left is not None and left.offset > (end := self._end(consumer, (topic, partition))):
                raise ConfigurationError(
                    f"{topic}[{partition}] ends at {end}, but reaction {name} has read it up to offset {left.offset}: "
                    f"it was cut, copied or restored. {advice}"
                )
        older = {
            place: self._known[place] for place in places if place in self._known and not self._places.ids.get(place)
        }
        if older and any(ids.get(topic) for topic, _ in older):
            self._places.write(older, ids)

    def _identities(self, places: Iterable[PartitionId]) -> dict[str, str]:
        with ClusterAdmin(self._settings) as cluster:
            return cluster.identities(topic for topic, _ in places)

    def _end(self, consumer: Consumer, place: PartitionId) -> int:
        """The last stable offset: events of open transactions come after the start."""
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(*place), timeout=_SECONDS)[1])
        except KafkaException as error:
            raise translated(error, doing=f"asking for the end of {place[0]}[{place[1]}]") from error

    def _commit(self, consumer: Consumer, starts: Mapping[PartitionId, int]) -> None:
        doing = f"beginning reaction {self._reaction.name} on {', '.join(sorted({topic for topic, _ in starts}))}"
        try:
            done = consumer.commit(
                offsets=[TopicPartition(t, p, offset) for (t, p), offset in starts.items()], asynchronous=False
            )
        except KafkaException as error:
            raise translated(error, doing=doing) from error
        for tp in done or ():
            if tp.error is not None:
                raise translated(KafkaException(tp.error), doing=doing) from KafkaException(tp.error)

    def _is_lost(self, place: PartitionId) -> str:
        name = self._reaction.name
        return (
            f"reaction {name} has begun, but its group {names.reacting(self._app.name, name)} has no offset for "
            f"{place[0]}[{place[1]}]: Kafka deletes those of a group that is unused for offsets.retention.minutes. "
            f"It does not restart by itself; say where: leftfold reactions begin {name} --since TIME"
        )


def has_members(error: InfrastructureError) -> bool:
    """Whether a commit was refused because the group has running members."""
    return code_of(error) in _HAS_MEMBERS
