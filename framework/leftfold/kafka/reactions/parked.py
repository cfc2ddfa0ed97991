"""Writes, lists and retries the events that a reaction has parked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from itertools import islice
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer

from leftfold.engine.reactions.deadline_executor import CLEAN
from leftfold.engine.reactions.pending import DEAD_HEADERS, PendingDelivery, parked
from leftfold.engine.reactions.reaction_processor import Handoff, ReactionProcessor
from leftfold.errors import ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import FencedProducer, record_at, write_with
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.reactions.start_offsets import RecordedPlaces
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.position import Position, RecordAddress
from leftfold.ports.bulk import OffsetRange, OpenArchive, check_owner, read_range, read_whole
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing, reason_of
from leftfold.ports.protocols import PartitionId, RawRecord

__all__ = ["ParkedEvents", "Parking", "ReactionRetry", "Tried"]


_PORTION = 5000
"""Notes of one transaction."""
_DISCARDED = "discarded/"
"""Before the partition, in the keys of records that note which parked events were discarded."""


class ParkedEvents:
    """The parked events in `{reaction}.dead`: all records after the last retry's offsets that were not discarded.

    Args:
        open_archive: opens the archive with events that topics have lost.
    """

    def __init__(self, reaction: str, settings: KafkaSettings, open_archive: OpenArchive | None = None) -> None:
        self._reaction, self._topic, self._notes = reaction, names.dead(reaction), names.begun(reaction)
        self._settings, self._open_archive = settings, open_archive
        self._places = RecordedPlaces(self._notes, settings)
        self._ids: Mapping[str, str] = {}
        """The id of the topic when the parked events were last looked for."""

    def count(self) -> int:
        """The number of parked events, by offsets, since no record of this topic is in a transaction."""
        start, end, discarded = self._range()
        ends = end.offsets.get(self._topic, {})
        waiting = sum(max(0, offset - start.next_offset(self._topic, p)) for p, offset in ends.items())
        return waiting - sum(start.next_offset(self._topic, p) <= offset < ends.get(p, 0) for p, offset in discarded)

    def read(self) -> Iterator[RawRecord]:
        """Reads the parked events; each partition in order."""
        start, end, discarded = self._range()
        with closing(KafkaLogReader(self._settings)) as log:
            for record in read_whole(log, start, end):
                if (record.partition, record.offset) not in discarded:
                    yield record

    def taken(self) -> FencedProducer:
        """What an operator writes with who retries or discards; it ends the work of another one at its next write."""
        next_step = f"see what waits: leftfold reactions parked {self._reaction}"
        return FencedProducer(
            self._settings, self._topic, doing=f"handling parked events of {self._reaction}", next_step=next_step
        )

    def passed(self, offsets: Mapping[PartitionId, int], producer: FencedProducer) -> None:
        """Notes the offsets up to which parked events have been retried.

        Raises:
            Fenced: another operator is at work.
        """
        self._note(self._places.records(offsets, self._ids), producer)

    def discard(self, chosen: Callable[[RawRecord], bool], *, why: str, who: str) -> int:
        """Notes which parked events are not tried any more, and returns how many; their bytes stay in the topic.

        Raises:
            Fenced: another operator is at work.
        """
        if not any(map(chosen, self.read())):
            return 0  # without ending the work of another one
        producer = self.taken()
        places = {(f"{_DISCARDED}{one.partition}", one.offset): one.offset for one in self.read() if chosen(one)}
        ids = dict.fromkeys((topic for topic, _ in places), self._ids.get(self._topic, ""))
        notes = self._places.records(places, ids, why=why, by=who)
        for start in range(0, len(notes), _PORTION):
            self._note(notes[start : start + _PORTION], producer)
        return len(notes)

    def _note(self, records: Sequence[Outgoing], producer: FencedProducer) -> None:
        if records:
            with producer.transaction():
                producer.write(self._notes, records)

    def original(self, parked: RawRecord) -> RawRecord:
        """The original event of a parked record; one that was too large to copy is read from the log.

        Raises:
            ContractError: the record was not written by a reaction, or neither log nor archive has the event.
        """
        source = header(parked.headers, "dead_source")
        try:
            at = RecordAddress.from_source(source.decode())
        except (ContractError, UnicodeDecodeError) as error:
            raise ContractError(
                f"{parked.address}: dead_source is {source!r}, which is not topic/partition/offset"
            ) from error
        if header(parked.headers, "dead_reference"):
            return self._looked_up(OffsetRange(*at, at.offset + 1))
        headers = tuple(one for one in parked.headers if one[0] not in DEAD_HEADERS)
        return RawRecord(*at, parked.key, parked.value, headers, parked.time)

    def _looked_up(self, part: OffsetRange) -> RawRecord:
        try:
            return record_at(self._settings, part.topic, part.partition, part.start)
        except ContractError:
            archive = self._open_archive() if self._open_archive is not None else None
            if archive is None or archive.ends(part.topic).get(part.partition, 0) < part.end:
                raise
            with ClusterAdmin(self._settings) as cluster:
                check_owner(archive, part.topic, cluster)
            for record in read_range(archive, part):
                return record
            raise

    def _range(self) -> tuple[Position, Position, set[tuple[int, int]]]:
        """Where parked events begin and end, and the partitions and offsets of those that were discarded."""
        with ClusterAdmin(self._settings) as cluster:
            end, held = cluster.ends([self._topic]), cluster.starts([self._topic])
            self._ids = cluster.identities([self._topic])
            id_ = self._ids.get(self._topic, "")
        read, ids = self._places.read(), self._places.ids
        # Offsets of a topic that was deleted and made again mean nothing in the new one.
        valid = {place: offset for place, offset in read.items() if ids.get(place) in ("", None, id_)}
        tried = {
            p: offset for (topic, p), offset in valid.items() if topic == self._topic
            if offset <= end.next_offset(topic, p)
        }  # fmt: skip
        discarded = {(int(topic.removeprefix(_DISCARDED)), n) for topic, n in valid if topic.startswith(_DISCARDED)}
        return held | Position({self._topic: tried}), end, discarded


class Parking:
    """An idempotent producer for `{reaction}.dead`."""

    def __init__(self, reaction: str, settings: KafkaSettings, partitions: int) -> None:
        self._topic, self._partitions = names.dead(reaction), partitions
        self._producer = Producer(
            {**settings.librdkafka(), "enable.idempotence": True, "message.timeout.ms": 30_000},
            logger=QuietLog("reaction"),
        )

    def park(self, pending: PendingDelivery, error: BaseException) -> None:
        """Writes an event with the reason, and waits for its delivery; a copy that is too large is left out.

        Raises:
            InfrastructureError: it is not written.
        """
        home = partition_of(pending.record.key or b"", self._partitions)
        try:
            self._write(parked(pending, error, home))
        except ContractError:  # it is too large
            self._write(parked(pending, error, home, whole=False))

    def keep(self, record: RawRecord) -> None:
        """Writes a parked record once more, as it is, behind the others.

        Raises:
            InfrastructureError: it is not written.
        """
        self._write(Outgoing(record.partition, record.key, record.value, record.headers))

    def _write(self, out: Outgoing) -> None:
        try:
            write_with(self._producer, self._topic, [out])
        except KafkaException as error:
            raise translated(error, doing=f"parking an event in {self._topic}") from error


_WAIT, _LEAVE_SECONDS = 0.05, 10.0


class Tried(NamedTuple):
    """The result of a retry: how many events were done, and why others are parked again, by their log address."""

    done: int
    parked: dict[str, str]


class ReactionRetry:
    """Retries each parked event once, with its original idempotency key.

    As in the reaction itself, `at_once` streams are processed in parallel, and the events of one stream in order. A
    failed event is parked again, after the others; so is one that this code cannot read or has no handler for. After a
    kill the next retry starts at the oldest event that was not done, so later ones that were done are repeated. Of two
    retries at once the earlier one stops before its next try; what it is trying is tried by the later one, too.
    """

    def __init__(self, app: App, name: str, settings: KafkaSettings, open_archive: OpenArchive | None = None) -> None:
        once = copy(app.reaction(name))
        once.attempts = 1
        self._events = ParkedEvents(name, settings, open_archive)
        self._producer = self._events.taken()
        with ClusterAdmin(settings) as cluster:
            self._parking = Parking(name, settings, cluster.partitions(names.dead(name)))
        self._processor = ReactionProcessor(once, self._park, note=self._note, report_failure=self._failed)
        self._taken = 0
        self._noted: dict[PartitionId, int] = {}
        self._parked: dict[str, str] = {}
        self._known: set[tuple[bytes, bytes]] = set()
        """The events that were taken, by place and idempotency key, since places come again in a topic that was made
        again. One may be parked twice, by a reaction or retry that was killed behind that."""

    def run(self, tell: Callable[[int], None] = lambda count: None) -> Tried:
        """Retries all parked events; `tell` is called with the number tried so far."""
        try:
            for record in self._events.read():
                self._take(record)
                self._step(0.0, tell)
                while self._processor.frontier.is_full(record.place):
                    self._step(_WAIT, tell)
            while self._step(_WAIT, tell):
                pass
        finally:
            self._processor.settle(None, _LEAVE_SECONDS)
            self._note()
        return Tried(self._taken - len(self._parked), self._parked)

    def _take(self, record: RawRecord) -> None:
        place, frontier = record.place, self._processor.frontier
        if not frontier.holds(place):
            self._processor.hold(place, Handoff(record.offset, CLEAN))
        source, key = (header(record.headers, name) for name in ("dead_source", "idempotency_key"))
        if (source, key) in self._known:
            frontier.take(place, record.offset, is_open=False)
            return
        self._known.update([(source, key)] if source else [])
        self._taken += 1
        try:
            original = self._events.original(record)
            if self._processor.take(original, (place, record.offset)):
                return
            where, why = str(original.address), "it is no event of this reaction any more"
        except ContractError as error:
            where, why = (
                source.decode(errors="replace") or str(record.address),
                str(error),
            )
        self._note()
        self._parking.keep(record)
        self._parked[where] = why
        frontier.take(place, record.offset, is_open=False)  # only now: it is written once more

    def _step(self, wait: float, tell: Callable[[int], None]) -> bool:
        """Does one step; returns whether any delivery was in progress."""
        busy = self._processor.step(wait)
        tell(self._taken - self._processor.frontier.open)
        return busy

    def _note(self) -> bool:
        """Notes what was tried; before each try and copy, so that none begins once another operator is at work."""
        offsets = self._processor.frontier.offsets()
        changed = {place: offset for place, offset in offsets.items() if self._noted.get(place) != offset}
        self._events.passed(changed or dict(islice(offsets.items(), 1)), self._producer)
        self._noted |= changed
        return True

    def _park(self, pending: PendingDelivery, error: BaseException) -> None:
        self._note()
        self._parking.park(pending, error)

    def _failed(self, pending: PendingDelivery, error: BaseException, is_parked: bool) -> None:
        self._parked[str(pending.record.address)] = reason_of(error)
