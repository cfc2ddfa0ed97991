"""The router of a process manager: reads events, writes inputs of instances, and reports event time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from leftfold.engine.archive.gaps import cut_source, unrouted
from leftfold.engine.processing.log_time import SILENCE, SourceClock, Watermark
from leftfold.engine.processing.process_wire import MAX_BYTES, NO_INPUT, Router, Unusable, unroutable
from leftfold.engine.progress import ReportLimiter
from leftfold.engine.reactions.delivery import Frontier
from leftfold.errors import ConfigurationError, ContractError, InfrastructureError, LeftfoldError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import QuietLog, translated
from leftfold.kafka.group_member import GroupMember, PartitionId
from leftfold.kafka.records import KafkaMessage, raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.encoding import time_in
from leftfold.model.keys import partition_of
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord

__all__ = ["InputProducer", "ProcessRouter"]


Report = Callable[[str, Mapping[str, Any]], None]
_LIMIT, _MOST = 1000, 5000
"""Maximum number of records of a fetch, and of unacknowledged inputs."""
_COMMIT_SECONDS, _TICK_SECONDS, _IDLE = 1.0, 0.2, 0.1
_LEAVE_SECONDS, _ANSWER_SECONDS = 10.0, 20.0
_KNOWN_FOR = 3600.0
"""A broker keeps the sequence numbers of a producer for `producer.id.expiration.ms`, a day by default."""


class InputProducer:
    """Writes process inputs in order: none is written behind one that is not. `ends` are the known next offsets.

    A process instance that saw a later input would treat a missing one as a duplicate afterwards. librdkafka ends with
    a fatal error at a gap (`enable.gapless.guarantee`), and brokers refuse a gap in the sequence numbers of a producer
    that they know; so the first record to a partition is one that is not an input.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, max_bytes: int) -> None:
        self._topic = topic
        self._failure: LeftfoldError | None = None
        self.ends: dict[int, int] = {}
        self._known: dict[int, float] = dict.fromkeys(range(partitions), float("-inf"))
        self._open, self._moved = 0, 0.0
        self._producer = Producer(
            {
                **settings.librdkafka(),
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "linger.ms": 2,
                "batch.size": min(262_144, max_bytes),
                "message.max.bytes": max(max_bytes, 1_000_000),
                # No record fails alone: `poll` ends the producer when none is acknowledged for 20 s.
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 1000,
            },
            logger=QuietLog("router", ignored="enable.gapless.guarantee is experimental"),
        )

    @property
    def is_full(self) -> bool:
        """Whether too many records are not acknowledged yet."""
        return self._open >= _MOST

    def mark_all(self) -> None:
        """Writes a record that is not an input to every partition; records of other writers come before it.

        The end offset of a partition cannot be used: it is after transaction markers, which readers never reach.

        Raises:
            InfrastructureError: it is not written.
        """
        for partition in self._known:
            self._mark(partition)
        self.flush(_ANSWER_SECONDS)

    def send(self, out: Outgoing, written: Callable[[], None], topic: str = "") -> None:
        """Writes a record; `written` is called once it is acknowledged.

        Args:
            topic: the topic to write to, if not that of the inputs.

        Raises:
            InfrastructureError: an earlier record is not written.
        """
        if not topic and time.monotonic() - self._known[out.partition] > _KNOWN_FOR:
            self._mark(out.partition)
            self.flush(_ANSWER_SECONDS)
        self._produce(topic or self._topic, out.partition, out.key, out.value, out.headers, written)

    def report(self, topic: str, value: bytes) -> None:
        """Writes a value to another topic."""
        self._produce(topic, 0, None, value, [], lambda: None)

    def poll(self, wait: float = 0.0) -> None:
        """Calls the callbacks of acknowledged records.

        Raises:
            InfrastructureError: a record is not written, or none was acknowledged for 20 s.
        """
        try:
            self._producer.poll(wait)
        except KafkaException as error:  # a fatal error, which is the consequence of the first failure
            self._failure = self._failure or translated(error, doing=f"writing to {self._topic}")
        if self._failure is not None:
            raise self._failure
        if self._open and time.monotonic() - self._moved > _ANSWER_SECONDS:
            raise InfrastructureError(
                f"no broker acknowledged an input to {self._topic} within {_ANSWER_SECONDS:g} s: are the brokers well? "
                "see: leftfold doctor"
            )

    def flush(self, seconds: float) -> bool:
        """Waits until all records are acknowledged; whether they are.

        Raises:
            InfrastructureError: a record is not written.
        """
        deadline = time.monotonic() + seconds
        self._producer.flush(0)  # sends without waiting for `linger.ms`
        while self._open and (left := deadline - time.monotonic()) > 0:
            self.poll(min(left, 0.1))
        return not self._open

    def close(self) -> None:
        """Discards what is not written."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.poll(0)

    def _mark(self, partition: int) -> None:
        self._produce(self._topic, partition, b"@", b"{}", NO_INPUT, lambda: None)

    def _produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        written: Callable[[], None],
    ) -> None:
        now = time.monotonic()
        self._moved = self._moved if self._open else now
        self._open += 1
        if topic == self._topic:
            self._known[partition] = now
        try:
            self._producer.produce(
                topic, value, key, partition, on_delivery=partial(self._delivered, written), headers=list(headers)
            )
        except KafkaException as error:
            self._open -= 1
            self.poll()
            raise translated(error, doing=f"writing to {topic}") from error

    def _delivered(self, written: Callable[[], None], error: KafkaError | None, message: KafkaMessage) -> None:
        self._open -= 1
        self._moved = time.monotonic()
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        if error is not None:
            # The first failure is the cause; what is behind it fails as a consequence.
            self._failure = self._failure or _not_written(topic, partition, error)
            return
        if topic == self._topic:
            self.ends[partition] = max(offset + 1, self.ends.get(partition, 0))
        written()


class ProcessRouter:
    """Routes the events of a process until `stop` is set; several routers share the event partitions.

    An event is acknowledged once its input is written. Every failure ends the router, so no event is skipped; inputs
    that were written but not acknowledged are written again by the next router, and are ignored as duplicates. An event
    whose value cannot become an input goes to `{name}.dead` with the reason, since a client may have chosen that value.

    Args:
        skipped: returns the events to skip if they cannot be routed, as `topic/partition/offset`; called whenever an
            event cannot be routed.
    """

    def __init__(
        self,
        app: App,
        name: str,
        settings: KafkaSettings,
        *,
        stop: threading.Event,
        report: Report,
        skipped: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._process, self._settings, self._stop, self._report = app.process(name), settings, stop, report
        self._read_skipped, self._skipped = skipped, frozenset[str]()
        self._seldom, self._dead = ReportLimiter(report, time.monotonic), 0
        self._cluster = ClusterAdmin(settings)
        count, most = self._cluster.partitions(names.commands(name)), self._max_bytes()
        self._router = Router(app.name, self._process, lambda key: partition_of(key, count), max_bytes=most)
        self._producer = InputProducer(settings, names.commands(name), count, most)
        self._clock, self._frontier = SourceClock(SILENCE), Frontier()
        self._starts: dict[PartitionId, int] = {}
        self._holds: dict[PartitionId, int] = {}
        """The number of times that each partition was taken; acknowledgements from before count no more."""
        self._committed: dict[PartitionId, tuple[int, str]] = {}
        self._commit_due = self._tick_due = 0.0
        self._has_reported = False
        self._member = GroupMember(
            {**settings.librdkafka(), "enable.partition.eof": True, "reconnect.backoff.max.ms": 1000},
            names.routing(app.name, name),
            [names.events(category) for category in self._process.categories],
            self._leave,
            self._gap,
            client="router",
            is_reporting=True,
        )

    @property
    def served(self) -> frozenset[PartitionId]:
        """The partitions that this router reads."""
        return self._member.served

    def run(self, told: Callable[[str], None] = lambda trouble: None) -> None:
        """Runs until `stop` is set, then waits until the inputs are written, for at most ten seconds.

        The callback is called in each turn with the reason why nothing can be read right now, '' = none.

        Raises:
            ContractError: an event cannot be routed. InfrastructureError: no broker, or an input that is not written.
            LogGap: events were deleted before they were routed. ConfigurationError: a topic ends before the routed
                offset. Fenced: this process must end.
        """
        try:
            while not self._stop.is_set():
                self.step()
                told(self._member.trouble)
        except KafkaException as error:
            raise translated(error, doing=f"routing events to {self._process.name}") from error
        finally:
            self.close()

    def step(self) -> None:
        """Routes the next records, and commits offsets and writes the watermark when they are due."""
        messages = self._member.fetch(_LIMIT, _IDLE)
        self._serve()
        for record in map(raw, messages):
            self._route(record)
        for place, offset in self._member.ends.items():
            self._frontier.reach(place, offset)
        self._producer.poll()
        while self._producer.is_full:
            self._producer.poll(0.1)
        now = time.monotonic()
        if now >= self._commit_due:
            self._commit_due = now + _COMMIT_SECONDS
            self._commit(wait=False)
        if now >= self._tick_due:
            self._tick()
            self._tick_due = time.monotonic() + _TICK_SECONDS

    def close(self) -> None:
        """Leaves the group, and closes all clients."""
        try:
            self._member.close()
        finally:
            self._producer.close()
            self._cluster.close()

    def _serve(self) -> None:
        """Starts reading new partitions at the committed offsets, or at 0."""
        if unknown := self._member.new - self._starts.keys():
            wanted = [TopicPartition(*place) for place in sorted(unknown)]
            for tp in self._committed_offsets(wanted):
                self._starts[tp.topic, tp.partition] = max(0, tp.offset)
            self._producer.mark_all()
        now, served = datetime.fromtimestamp(time.time(), UTC), list[PartitionId]()
        for place in sorted(self._member.new & self._starts.keys()):
            if self._member.serve(place, self._starts[place]):
                served.append(place)
                self._holds[place] = self._holds.get(place, 0) + 1
                self._clock.hold(place, now)
                self._frontier.hold(place, self._starts.pop(place))
        if served and not self._has_reported:
            self._has_reported = True
            self._report("routing", {"process": self._process.name, "from": ", ".join(self._process.categories)})

    def _committed_offsets(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        name, brokers = self._process.name, self._settings.bootstrap_servers
        try:
            found = self._member.consumer.committed(wanted, timeout=_ANSWER_SECONDS)
            if failed := next((tp.error for tp in found if tp.error is not None), None):
                raise KafkaException(failed)
        except KafkaException as error:
            raise translated(
                error, doing=f"asking how far events are routed to {name}", brokers=brokers, waited=_ANSWER_SECONDS
            ) from error
        return found

    def _route(self, record: RawRecord) -> None:
        place = (record.topic, record.partition)
        if record.offset < self._frontier.reached(place):
            return
        out, topic = None, ""
        try:
            out = self._router.route(record)
        except Unusable as error:
            out, topic = error.letter, names.dead(self._process.name)
            self._bury(record, error)
        except ContractError as error:
            self._check_skipped(record, error)
        self._frontier.take(place, record.offset, is_open=True)
        done = partial(self._done, record, self._holds[place])
        if out is None:
            done()
        else:
            self._producer.send(out, done, topic)

    def _done(self, record: RawRecord, hold: int) -> None:
        place = (record.topic, record.partition)
        if self._frontier.holds(place) and self._holds[place] == hold:
            self._frontier.done(place, record.offset)
            self._clock.routed(record, time_in(header(record.headers, "ce_time")))

    def _check_skipped(self, record: RawRecord, error: ContractError) -> None:
        source = f"{record.topic}/{record.partition}/{record.offset}"
        if source not in self._skipped:
            self._skipped = frozenset(self._read_skipped())
        if source not in self._skipped:
            raise unroutable(self._process.name, record, error) from error
        self._report("event passed over", {"process": self._process.name, "at": source, "reason": str(error)})

    def _bury(self, record: RawRecord, error: Unusable) -> None:
        self._dead += 1
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        details = {"process": self._process.name, "at": place, "reason": str(error), "dead": self._dead}
        self._seldom.report("event dead-lettered", details)

    def _commit(self, *, wait: bool) -> None:
        """Commits the offset of the first event of each partition whose input is not written."""
        if self._member.is_unsure:
            self._committed, self._member.is_unsure = {}, False
        offsets = {place: (offset, "") for place, offset in self._frontier.offsets().items()}
        moved = {place: one for place, one in offsets.items() if one != self._committed.get(place)}
        if self._member.try_commit(moved, wait=wait):
            self._committed |= moved

    def _tick(self) -> None:
        """Writes a watermark with the time of every source partition."""
        offsets = self._frontier.offsets()
        if not offsets:
            return
        now = datetime.fromtimestamp(time.time(), UTC)
        ends = self._cluster.stable_ends(offsets)
        times = {
            f"{topic}/{partition}": self._clock.time(
                (topic, partition), offset, now, is_at_end=offset >= ends[topic, partition]
            )
            for (topic, partition), offset in offsets.items()
        }
        self._producer.report(names.time(self._process.name), Watermark(times, dict(self._producer.ends)).encode())

    def _leave(self, places: Collection[PartitionId], ours: bool) -> None:
        held = [place for place in places if self._frontier.holds(place)]
        if ours and held:
            try:
                self._producer.flush(_LEAVE_SECONDS)
            except LeftfoldError as error:
                self._report("not written", {"process": self._process.name, "why": str(error)})
            self._commit(wait=True)
        self._frontier.drop(places)
        self._clock.drop(places)
        for place in places:
            self._committed.pop(place, None)
            self._starts.pop(place, None)

    def _gap(self, topic: str, partition: int, offset: int) -> LeftfoldError:
        low, high = self._member.consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=_ANSWER_SECONDS
        )
        if low <= offset:
            return cut_source(self._process.name, topic, partition, offset, high)
        return unrouted(self._process.name, OffsetRange(topic, partition, offset, low))

    def _max_bytes(self) -> int:
        """Largest record batch in bytes that the topics accept to which the router writes."""
        name = self._process.name
        try:
            return self._cluster.max_batch_bytes([names.commands(name), names.dead(name)])
        except ConfigurationError:
            return MAX_BYTES  # the login may not read the topics' settings


def _not_written(topic: str, partition: int, error: KafkaError) -> LeftfoldError:
    found = translated(error, doing=f"an input is not written to {topic}[{partition}]")
    return found if isinstance(found, InfrastructureError | ConfigurationError) else InfrastructureError(str(found))
