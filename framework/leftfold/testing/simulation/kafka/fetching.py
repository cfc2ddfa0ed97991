"""Fetches records of assigned partitions in the background, as librdkafka does for its consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from confluent_kafka import KafkaError, Message

from leftfold.testing.simulation.kafka.client import FOREVER, SimulatedClient, exception, failure
from leftfold.testing.simulation.kafka.group_coordinator import CommittedOffset, PartitionId
from leftfold.testing.simulation.kafka.partitions import BrokerError, Partition, StoredRecord

__all__ = ["END", "Fetched", "Fetcher", "leader"]

BEGINNING, END, STORED, INVALID = -2, -1, -1000, -1001
OUT_OF_RANGE, UNKNOWN_TOPIC, UNSTABLE = 1, 3, 88
_MOST = 500
_QUEUED = 1000
_AGAIN_SECONDS = 0.5


class _Assigned:
    """An assigned partition. `offset` is fetched next, `position` is behind the last delivered record.

    Its `version` rises with each seek, pause and removal; records fetched under an older version are discarded.
    """

    __slots__ = (
        "ends",
        "eof",
        "is_asking",
        "is_paused",
        "offset",
        "place",
        "position",
        "question",
        "queued",
        "version",
    )

    def __init__(self, place: PartitionId, offset: int) -> None:
        self.place, self.offset = place, offset
        self.position = self.eof = INVALID
        self.version = self.queued = 0
        self.is_paused = False
        self.question: _Question | None = None
        self.ends = INVALID, INVALID


class Fetched(NamedTuple):
    """A record, an error, or the end of a partition (its offset), not yet delivered to the application."""

    of: _Assigned
    version: int
    item: StoredRecord | KafkaError | int


class Fetcher:
    """The assigned partitions of one consumer, and their fetches.

    Args:
        put: called with what was fetched, in order.
    """

    def __init__(self, client: SimulatedClient, put: Callable[[Fetched], None]) -> None:
        config = client.config
        self._client, self._put = client, put
        self.is_committed = str(config.get("isolation.level", "read_committed")) == "read_committed"
        self._group = str(config.get("group.id", ""))
        self._reset = str(config.get("auto.offset.reset", "largest"))
        self._shows_ends = str(config.get("enable.partition.eof", False)).lower() == "true"
        self._wait = float(config.get("fetch.wait.max.ms", 500)) / 1000
        self.assigned: dict[PartitionId, _Assigned] = {}
        self.topics: set[str] = set()
        """The topics that were ever read."""

    def add(self, place: PartitionId, offset: int) -> None:
        """Adds a partition, at an offset or at the group's committed offset or the reset policy's."""
        self.topics.add(place[0])
        found = self.assigned[place] = _Assigned(place, offset)
        self._start(found)

    def forget(self, places: Sequence[PartitionId]) -> None:
        """Removes partitions from the assignment."""
        for place in places:
            found = self.assigned.pop(place, None)
            if found is not None:
                found.version += 1

    def hold(self, place: PartitionId) -> None:
        """Pauses a partition: fetched records that were not delivered are fetched again later."""
        found = self.assigned.get(place)
        if found is not None and not found.is_paused:
            found.is_paused = True
            found.version += 1

    def release(self, place: PartitionId) -> None:
        """Resumes a paused partition."""
        found = self.assigned.get(place)
        if found is not None and found.is_paused:
            found.is_paused, found.queued = False, 0
            if found.position >= 0:
                found.offset = found.position
            self._start(found)

    def seek(self, place: PartitionId, offset: int) -> None:
        """Continues at another offset.

        Raises:
            KafkaException: `_STATE`: the partition is not read, or its start offset is not known yet.
        """
        found = self.assigned.get(place)
        if found is None or found.offset < 0:
            raise exception(KafkaError._STATE, "seek: not read yet")
        found.version += 1
        found.offset = found.position = offset
        found.eof, found.queued = INVALID, 0
        self._start(found)

    def position(self, place: PartitionId) -> int:
        """The offset behind the last delivered record."""
        return self.assigned[place].position if place in self.assigned else INVALID

    def ends(self, place: PartitionId) -> tuple[int, int]:
        """The first offset and the end, as of the last fetch."""
        return self.assigned[place].ends if place in self.assigned else (INVALID, INVALID)

    def end_of(self, partition: Partition) -> int:
        """The end of a partition for this consumer's isolation level."""
        return partition.stable_end if self.is_committed else partition.end

    def taken(self, fetched: Fetched) -> list[Message[Any, Any]]:
        """The messages of a fetched item; none when it is outdated."""
        found, version, item = fetched
        if version != found.version:
            return []
        topic, partition = found.place
        if isinstance(item, StoredRecord):
            found.position, found.queued = item.offset + 1, found.queued - 1
            if found.queued < _QUEUED // 2:
                self._fetch(found)
            if item.outcome is not None:
                # A transaction marker is no message, but moves the position.
                return []
            message = Message(
                topic=topic, partition=partition, offset=item.offset, key=item.key, value=item.value,
                headers=cast("Any", item.headers or None), timestamp=(item.kind, item.timestamp),
            )  # fmt: skip
        elif isinstance(item, KafkaError):
            message = Message(topic=topic, partition=partition, offset=found.offset, error=item)
        else:
            found.position = item
            end = KafkaError(KafkaError._PARTITION_EOF, "end of partition")
            message = Message(topic=topic, partition=partition, offset=item, error=end)
        return [message]

    def _start(self, found: _Assigned) -> None:
        if found.is_paused:
            return
        if found.offset >= 0:
            self._fetch(found)
        elif found.offset in (STORED, INVALID) and self._group:
            self._from_committed(found)
        else:
            self._from(found, found.offset)

    def _from_committed(self, found: _Assigned) -> None:
        version, place, client = found.version, found.place, self._client

        def work(reply: Callable[[Any], None]) -> None:
            reply(client.cluster.group(self._group).found(place, stable=self.is_committed))

        def done(value: Any) -> None:
            if version == found.version and isinstance(value, CommittedOffset):
                if value.offset >= 0:
                    found.offset = value.offset
                    self._fetch(found)
                else:
                    self._from(found, INVALID)

        client.ask("offset fetch", ("group", self._group), work, done, FOREVER, frozenset({UNSTABLE}))

    def _from(self, found: _Assigned, where: int) -> None:
        """Starts at an end of the partition, or by the reset policy."""
        if where not in (BEGINNING, END):
            if self._reset == "error":
                self._put(Fetched(found, found.version, failure(KafkaError._AUTO_OFFSET_RESET, "no such offset")))
                return
            where = BEGINNING if self._reset in ("earliest", "smallest", "beginning") else END
        version, place, client = found.version, found.place, self._client

        def work(reply: Callable[[Any], None]) -> None:
            partition = client.cluster.partition(*place)
            reply(partition.start if where == BEGINNING else self.end_of(partition))

        def done(value: Any) -> None:
            if version == found.version and not isinstance(value, BrokerError):
                found.offset = value
                self._fetch(found)

        client.ask("list offsets", leader(place), work, done, FOREVER, frozenset({UNKNOWN_TOPIC}))

    def _fetch(self, found: _Assigned) -> None:
        """Requests the next records; at the end of the partition the request waits at the broker."""
        if found.is_paused or found.offset < 0 or found.queued >= _QUEUED:
            return
        if found.question is not None:
            if found.question.version != found.version:
                found.question.hurry(self._wait)
            return
        version, place = found.version, found.place
        question = found.question = _Question(
            self._client, self, found, self._wait if self._shows_ends and found.eof != found.offset else None
        )

        def done(value: Any) -> None:
            found.question = None
            if self.assigned.get(place) is not found:
                return
            if version != found.version:
                self._start(found)
            elif isinstance(value, BrokerError):
                self._refused(found, value.code)
            else:
                self._arrived(found, *value)

        self._client.ask("fetch", leader(place), question.arrive, done, FOREVER)

    def _arrived(self, found: _Assigned, records: list[StoredRecord], following: int, start: int, end: int) -> None:
        found.ends = start, end
        found.queued += len(records)
        for record in records:
            self._put(Fetched(found, found.version, record))
        if not records and following == found.offset and self._shows_ends and found.eof != following:
            found.eof = following
            self._put(Fetched(found, found.version, following))
        found.offset = following
        self._fetch(found)

    def _refused(self, found: _Assigned, code: int) -> None:
        version = found.version
        if code == OUT_OF_RANGE:
            self._from(found, INVALID)
        else:
            self._client.later(_AGAIN_SECONDS, lambda: self._fetch(found) if version == found.version else None)


class _Question:
    """A fetch request at its broker: answered with records, or waiting for some.

    Args:
        seconds: after which it is answered without records, None = it waits until something changes. Real fetches
            come back empty and are repeated, which only the count of requests shows.
    """

    def __init__(self, client: SimulatedClient, fetcher: Fetcher, found: _Assigned, seconds: float | None) -> None:
        self._client, self._fetcher, self._found, self._seconds = client, fetcher, found, seconds
        self.version, self._offset = found.version, found.offset
        self._look: Callable[[], None] | None = None

    def hurry(self, seconds: float) -> None:
        """Answers within so many seconds, since the answer is not needed any more."""
        look = self._look
        if look is not None:
            self._look = None
            self._client.scheduler.call_later(self._client.scheduler.random.random() * seconds, look)

    def arrive(self, reply: Callable[[Any], None]) -> None:
        """Reads records, or waits for a change.

        Raises:
            BrokerError: the topic or the offset does not exist.
        """
        partition = self._client.cluster.partition(*self._found.place)
        if self._read(partition, reply, is_last=False):
            return

        def look() -> None:
            partition.watchers.pop(look, None)
            topic = self._client.cluster.topics.get(self._found.place[0])
            if topic is None or partition not in topic.partitions:
                reply(BrokerError(UNKNOWN_TOPIC))
            elif self._found.version != self.version or self._client.process.code is not None:
                reply(BrokerError(KafkaError._INTR))
            elif not self._read(partition, reply, is_last=False):
                partition.watchers[look] = None

        def expire() -> None:
            if look in partition.watchers:
                del partition.watchers[look]
                self._read(partition, reply, is_last=True)

        partition.watchers[look] = None
        self._look = look
        if self._found.version != self.version:
            self.hurry(0.0)
        if self._seconds is not None:
            self._client.scheduler.call_later(self._seconds, expire)

    def _read(self, partition: Partition, reply: Callable[[Any], None], *, is_last: bool) -> bool:
        try:
            records, following = partition.read(
                self._offset, committed=self._fetcher.is_committed, most=_MOST, markers=True
            )
        except BrokerError as refused:
            reply(refused)
            return True
        if is_answer := bool(records or following > self._offset or is_last):
            reply((records, following, partition.start, partition.end))
        return is_answer


def leader(place: PartitionId) -> tuple[str, ...]:
    """The leader of a partition, as the target of a request."""
    return "partition", place[0], str(place[1])
