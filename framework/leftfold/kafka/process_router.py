"""The router of a process manager: reads events, writes inputs of instances, and reports event time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException, TopicPartition

from leftfold.engine.log_gaps import cut_source, unrouted
from leftfold.engine.processing.log_time import SILENCE, SourceClock, Watermark
from leftfold.engine.processing.process_wire import MAX_BYTES, Router, Unusable, unroutable
from leftfold.engine.progress import ReportLimiter
from leftfold.engine.reactions.pending import Frontier
from leftfold.errors import ConfigurationError, ContractError, LeftfoldError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.errors import committed_offsets, translated
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.records import raw
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.state_codec import time_in
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.instruments import CONSUMED, member
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import PartitionId, RawRecord, Report

__all__ = ["ProcessRouter"]


T = TypeVar("T")
_LIMIT = 1000
"""Maximum number of records of a fetch."""
_COMMIT_SECONDS, _TICK_SECONDS, _IDLE = 1.0, 0.2, 0.1
_LEAVE_SECONDS, _ANSWER_SECONDS = 10.0, 20.0


class _AskedEnds(NamedTuple):
    """A request for the ends of source partitions, and what was known when it was sent."""

    at: datetime
    offsets: Mapping[PartitionId, int]
    inputs: Mapping[int, int]
    answers: Mapping[PartitionId, Any]


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
        self._producer = InputProducer(settings, names.commands(name), count, most, stop)
        self._clock, self._frontier = SourceClock(SILENCE), Frontier()
        self._starts: dict[PartitionId, int] = {}
        self._holds: dict[PartitionId, int] = {}
        """The number of times that each partition was taken; acknowledgements from before count no more."""
        self._commit_due = self._tick_due = self._answered = 0.0
        self._asked: _AskedEnds | None = None
        self._has_reported = False
        self._member = GroupMember(
            settings.librdkafka(),
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

    def run(self, report_trouble: Callable[[str], None] = lambda trouble: None) -> None:
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
                if self.served or self._member.trouble:
                    report_trouble(self._member.trouble)
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
        if messages:
            routing = {"messaging.system": "kafka", "messaging.operation.name": "route"}
            CONSUMED.record(len(messages), {**member("router", self._process.name), **routing})
        for place, offset in self._member.ends.items():
            self._frontier.reach(place, offset)
        self._producer.poll()
        while self._producer.is_full and not self._stop.is_set():
            self._producer.poll(0.1)
        now = time.monotonic()
        if now >= self._commit_due:
            self._commit_due = now + _COMMIT_SECONDS
            self._commit(wait=False)
        self._report_time(now)

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
            if not self._producer.mark_all():
                return
        now, served = datetime.fromtimestamp(time.time(), UTC), list[PartitionId]()
        for place in sorted(self._member.new & self._starts.keys()):
            if self._member.serve(place, self._starts[place]):
                served.append(place)
                self._holds[place] = self._holds.get(place, 0) + 1
                self._clock.hold(place, now)
                self._answered = time.monotonic()
                self._frontier.hold(place, self._starts.pop(place))
        if served and not self._has_reported:
            self._has_reported = True
            self._report("routing", {"process": self._process.name, "from": ", ".join(self._process.categories)})

    def _committed_offsets(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        name, brokers = self._process.name, self._settings.bootstrap_servers
        try:
            return committed_offsets(self._member.consumer, wanted, _ANSWER_SECONDS)
        except KafkaException as error:
            raise translated(
                error, doing=f"asking how far events are routed to {name}", brokers=brokers, waited=_ANSWER_SECONDS
            ) from error

    def _route(self, record: RawRecord) -> None:
        place = record.place
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
        place = record.place
        if self._frontier.holds(place) and self._holds[place] == hold:
            self._frontier.done(place, record.offset)
            self._clock.routed(record, time_in(header(record.headers, "ce_time")))

    def _check_skipped(self, record: RawRecord, error: ContractError) -> None:
        source = record.address.source
        if source not in self._skipped:
            self._skipped = frozenset(self._read_skipped())
        if source not in self._skipped:
            raise unroutable(self._process.name, record, error) from error
        self._report("event passed over", {"process": self._process.name, "at": source, "reason": str(error)})

    def _bury(self, record: RawRecord, error: Unusable) -> None:
        self._dead += 1
        details = {"process": self._process.name, "at": str(record.address), "reason": str(error), "dead": self._dead}
        self._seldom.report("event dead-lettered", details)

    def _commit(self, *, wait: bool) -> None:
        """Commits the offset of the first event of each partition whose input is not written."""
        offsets = {place: (offset, "") for place, offset in self._frontier.offsets().items()}
        self._member.commit_moved(offsets, wait=wait)

    def _report_time(self, now: float) -> None:
        """Asks for the ends of all source partitions, and writes a watermark once they are known.

        A broker that does not answer, as while leaders move, only delays the next watermark.

        Raises:
            InfrastructureError: none was known for 20 s.
        """
        if self._asked is None:
            offsets = self._frontier.offsets()
            if offsets and now >= self._tick_due:
                self._tick_due = now + _TICK_SECONDS
                answers = self._cluster.ask_stable_ends(offsets)
                self._asked = _AskedEnds(
                    datetime.fromtimestamp(time.time(), UTC), offsets, dict(self._producer.ends), answers
                )
            return
        if not all(answer.done() for answer in self._asked.answers.values()):
            return
        asked, self._asked = self._asked, None
        try:
            ends = {place: int(answer.result(0).offset) for place, answer in asked.answers.items()}
        except KafkaException as error:
            if now - self._answered > _ANSWER_SECONDS:
                doing = f"asking for the ends of the events of {self._process.name}"
                raise translated(error, doing=doing, brokers=self._settings.bootstrap_servers) from error
            return
        self._answered, self._member.trouble = now, ""
        held = {place: offset for place, offset in asked.offsets.items() if self._frontier.holds(place)}
        times = {
            place: self._clock.time(place, offset, asked.at, is_at_end=offset >= ends[place])
            for place, offset in held.items()
        }
        if times:
            watermark = Watermark(_by_source(times), asked.inputs, _by_source(held))
            self._producer.report(names.time(self._process.name), watermark.encode())

    def _leave(self, places: Collection[PartitionId], ours: bool) -> None:
        if ours and self._producer.failure is None and any(map(self._frontier.holds, places)):
            try:
                self._producer.flush(_LEAVE_SECONDS, is_leaving=True)
            except LeftfoldError as error:
                self._report("inputs not written", {"process": self._process.name, "why": str(error)})
            self._commit(wait=True)
        self._asked = None
        self._frontier.drop(places)
        self._clock.drop(places)
        for place in places:
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


def _by_source(values: Mapping[PartitionId, T]) -> dict[str, T]:
    """The values of source partitions by `topic/partition`, as in watermarks."""
    return {f"{topic}/{partition}": value for (topic, partition), value in values.items()}
