"""What works behind a simulated producer: batches with sequences, and transactions as librdkafka runs them."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import KafkaError, Message, TopicPartition

from leftfold.partitioner import partition_of
from leftfold.testing.simulation.kafka.client import Client, exception, failure
from leftfold.testing.simulation.kafka.groups import Committed, Place
from leftfold.testing.simulation.kafka.membership import read_group_metadata
from leftfold.testing.simulation.kafka.partitions import Batch, Headers, Partition, Refused

__all__ = ["Sender", "as_bytes"]

EPOCH, OUT_OF_ORDER, DUPLICATE, INVALID_STATE, UNKNOWN_ID, CONCURRENT, FENCED = 47, 45, 46, 48, 49, 51, 90
_AGAIN = frozenset({CONCURRENT})
_FENCING = frozenset({EPOCH, FENCED})
_LARGEST = 1_000_000
_MOST = 1000


class _Parcel:
    """A record on its way."""

    __slots__ = ("headers", "key", "on_delivery", "place", "timestamp", "until", "value")

    def __init__(
        self, place: Place, record: tuple[bytes | None, bytes | None, Headers, int], on_delivery: Any, until: float
    ) -> None:
        self.place, self.on_delivery, self.until = place, on_delivery, until
        self.key, self.value, self.headers, self.timestamp = record

    @property
    def weight(self) -> int:
        return 70 + len(self.key or b"") + len(self.value or b"")


class Sender(Client):
    """What works in the background of a producer."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None) -> None:
        super().__init__(config, logger, "producer")
        self.id = str(self.config.get("transactional.id", "") or "")
        self._is_idempotent = bool(self.id) or str(self.config.get("enable.idempotence", False)).lower() == "true"
        self._linger = float(self.config.get("linger.ms", 5)) / 1000
        default = self.config.get("transaction.timeout.ms", 60_000) if self.id else 300_000
        self._patience = float(self.config.get("message.timeout.ms", default)) / 1000
        self._most = int(self.config.get("queue.buffering.max.messages", 100_000))
        self._only_errors = bool(self.config.get("delivery.report.only.error", False))
        self.left = 0
        self._queues: dict[Place, deque[_Parcel]] = {}
        self._sending: dict[Place, list[_Parcel]] = {}
        self._sequences: dict[Place, int] = {}
        self._producer, self._epoch = -1, -1
        self._is_asking = self._is_bumping = False
        self._state = "new"
        self._members: set[Place] = set()
        self._adding: set[Place] = set()
        self._has_part = False
        self._fatal: KafkaError | None = None
        self._abortable: KafkaError | None = None
        self._is_due = False

    # ---- records

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: Any,
        timestamp: int,
        headers: Any,
    ) -> None:
        """Queues a record, or refuses it."""
        if self._fatal is not None:
            raise exception(KafkaError._FATAL, self._fatal.str(), fatal=True)
        if self.id and self._state != "open":
            raise exception(KafkaError._STATE, "no transaction is open")
        if self.left >= self._most:
            raise BufferError("Local: Queue full")
        if isinstance(headers, dict):
            headers = list(headers.items())
        if headers is not None:
            headers = [(name, as_bytes(content)) for name, content in headers]
        weight = len(value or b"") + len(key or b"")
        if weight > int(self.config.get("message.max.bytes", _LARGEST)):
            raise exception(KafkaError.MSG_SIZE_TOO_LARGE, f"a record of {weight} bytes")
        known = self.cluster.topics.get(topic)
        if known is not None:
            if partition >= len(known.partitions):
                raise exception(KafkaError._UNKNOWN_PARTITION, f"{topic}[{partition}]")
            if partition < 0:
                partition = self._choose(key, len(known.partitions))
        when = timestamp or int((self.cluster.time() + self.process.skew) * 1000)
        parcel = _Parcel(
            (topic, partition), (key, value, headers or None, when), on_delivery, self.scheduler.now + self._patience
        )
        self._queues.setdefault(parcel.place, deque()).append(parcel)
        self.left += 1
        self._later(self._linger)

    def poll(self, timeout: float) -> int:
        """Serves what is to be told."""
        if not self._events and timeout != 0:
            self.pause(1e9 if timeout < 0 else timeout)
        count = self.serve()
        if self._fatal is not None and self._on_error is None and not self.id:
            raise exception(self._fatal.code(), self._fatal.str(), fatal=True)
        return count

    def flush(self, timeout: float) -> int:
        """Waits until nothing is on its way."""
        end = self.scheduler.now + timeout
        self._pump()
        self.serve()
        while self.left and self.scheduler.now < end:
            self.pause(min(end - self.scheduler.now, 1e9))
            self.serve()
        self.serve()
        return self.left

    def purge(self) -> None:
        """Throws away what is queued and not on its way."""
        for queue in self._queues.values():
            while queue:
                self._delivered(queue.popleft(), failure(KafkaError._PURGE_QUEUE, "purged"), -1)

    def _choose(self, key: bytes | None, count: int) -> int:
        kind = self.config.get("partitioner", "consistent_random")
        if key is None or (kind == "consistent_random" and not key):
            return self.scheduler.random.randrange(count)
        if str(kind).startswith("murmur2"):
            return partition_of(key, count)
        return zlib.crc32(key) % count

    def _later(self, seconds: float) -> None:
        if not self._is_due:
            self._is_due = True

            def due() -> None:
                self._is_due = False
                self._pump()

            self.scheduler.call_later(seconds + self.scheduler.jitter(), lambda: self.process.do(due))

    def _pump(self) -> None:
        """Sends what can be sent."""
        if self.is_closed or self._fatal is not None:
            return
        if self.id and self._state not in ("open", "committing"):
            return
        if self._is_idempotent and self._producer < 0:
            self._identify()
            return
        if self._is_bumping:
            if self._sending:
                return
            self._is_bumping = False
            self._epoch += 1
            self._sequences.clear()
        waiting = [place for place, queue in self._queues.items() if queue and place not in self._sending]
        if not waiting:
            return
        if self.id and (new := [p for p in waiting if p not in self._members and p not in self._adding]):
            self._add(new)
        for place in waiting:
            if not self.id or place in self._members:
                self._send(place)

    def _identify(self) -> None:
        if self._is_asking:
            return
        self._is_asking = True

        def done(value: Any) -> None:
            self._is_asking = False
            self._producer, self._epoch = value, 0
            self._pump()

        self.ask("init producer", (), lambda reply: reply(self.cluster.coordinator.new_producer()), done)

    def _add(self, places: list[Place]) -> None:
        """Makes partitions part of the transaction, before anything is written to them."""
        self._adding.update(places)
        self._has_part = True
        id_, producer, epoch = self.id, self._producer, self._epoch

        def work(reply: Callable[[Any], None]) -> None:
            found = [self._known(place) for place in places]
            self.cluster.coordinator.add(id_, producer, epoch, [p for p in found if p is not None])
            reply([p is not None for p in found])

        def done(value: Any) -> None:
            self._adding.difference_update(places)
            if isinstance(value, Refused):
                self._refused(value.code, "AddPartitionsToTxn")
                return
            self._members.update(place for place, is_there in zip(places, value, strict=True) if is_there)
            if missing := [place for place, is_there in zip(places, value, strict=True) if not is_there]:
                self._give_up(missing)
            self._pump()

        self.ask("add partitions", ("transaction", id_), work, done, also=_AGAIN)

    def _give_up(self, places: list[Place]) -> None:
        """Topics that nobody knows: asked about for a while, then their records fail."""

        def look() -> None:
            for place in places:
                queue = self._queues.get(place, deque())
                if self._known(place) is not None:
                    continue
                while queue and queue[0].until <= self.scheduler.now:
                    self._delivered(queue.popleft(), failure(KafkaError._UNKNOWN_TOPIC, place[0]), -1)
            self._later(0.1)

        soonest = min((q[0].until for p in places if (q := self._queues.get(p))), default=self.scheduler.now)
        self.scheduler.call_later(max(0.5, soonest - self.scheduler.now), lambda: self.process.do(look))

    def _known(self, place: Place) -> Partition | None:
        try:
            return self.cluster.partition(*place)
        except Refused:
            return None

    def _send(self, place: Place) -> None:
        """Sends a batch to one partition; the next one waits for its answer."""
        queue, now = self._queues[place], self.scheduler.now
        while queue and queue[0].until <= now:
            self._delivered(queue.popleft(), failure(KafkaError._MSG_TIMED_OUT, "not delivered in time"), -1)
        if not queue:
            return
        if place[1] < 0:
            self._settle_partition(place)
            return
        parcels: list[_Parcel] = []
        room = int(self.config.get("batch.size", _LARGEST))
        while queue and len(parcels) < _MOST and (not parcels or room >= queue[0].weight):
            room -= queue[0].weight
            parcels.append(queue.popleft())
        self._sending[place] = parcels
        sequence = self._sequences.get(place, 0)
        records = [(p.key, p.value, p.headers, p.timestamp) for p in parcels]
        batch = (
            Batch(records, self._producer, self._epoch, sequence, bool(self.id))
            if self._is_idempotent
            else Batch(records)
        )
        until, id_ = parcels[-1].until, self.id

        def work(reply: Callable[[Any], None]) -> None:
            partition = self.cluster.partition(*place)
            if sum(p.weight for p in parcels) > int(partition.topic.config["max.message.bytes"]):
                raise Refused(KafkaError.MSG_SIZE_TOO_LARGE)
            if id_ and not self.cluster.coordinator.holds(id_, batch.producer, batch.epoch, partition):
                known = self.cluster.coordinator.known[id_]
                raise Refused(EPOCH if known.epoch > batch.epoch else INVALID_STATE)
            reply(partition.append(batch, int(self.cluster.time() * 1000)))

        def done(value: Any) -> None:
            self._sending.pop(place, None)
            code = value.code if isinstance(value, Refused) else 0
            if code in (0, DUPLICATE):
                self._sequences[place] = sequence + len(parcels)
                for index, parcel in enumerate(parcels):
                    self._delivered(parcel, None, value + index if not code else -1)
            else:
                code = KafkaError._MSG_TIMED_OUT if code == KafkaError._TIMED_OUT else code
                self._failed(code)
                for parcel in parcels:
                    self._delivered(parcel, failure(code, "not delivered"), -1)
            self._pump()

        self.ask("produce", ("partition", place[0], str(place[1])), work, done, max(0.01, until - now))

    def _settle_partition(self, place: Place) -> None:
        """A topic that was not known when its records were queued."""
        topic, queue = self.cluster.topics.get(place[0]), self._queues[place]
        if topic is None:
            self._give_up([place])
            return
        while queue:
            parcel = queue.popleft()
            parcel.place = (place[0], self._choose(parcel.key, len(topic.partitions)))
            self._queues.setdefault(parcel.place, deque()).append(parcel)
        self._later(0.0)

    def _failed(self, code: int) -> None:
        """A batch was refused."""
        if code in _FENCING or code == UNKNOWN_ID:
            self._refused(code, "Produce")
        elif self.id:
            self._abortable = self._abortable or failure(code, "a record was not delivered", abort=True)
        elif code in (KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT) and self._is_idempotent:
            # It may stand there: sequences begin again under another epoch once nothing is on its way.
            self._is_bumping = True
        elif code == OUT_OF_ORDER:
            self._die(failure(code, "sequences are out of order", fatal=True))

    def _delivered(self, parcel: _Parcel, error: KafkaError | None, offset: int) -> None:
        self.left -= 1
        if error is not None and self.id and self._state in ("open", "committing") and self._abortable is None:
            self._abortable = failure(error.code(), error.str(), abort=True)
        if parcel.on_delivery is not None and not (error is None and self._only_errors):
            topic, partition = parcel.place
            message = Message(
                topic=topic, partition=partition, offset=offset, key=parcel.key, value=parcel.value,
                headers=cast("Any", parcel.headers), error=error, timestamp=(1, parcel.timestamp),
            )  # fmt: skip
            on_delivery = parcel.on_delivery
            self.tell(lambda: on_delivery(error, message))
        elif not self.left:
            self.notify()

    def initialise(self, timeout: float) -> None:
        """Takes the id: fences whoever had it, and ends what that one had open."""
        if not self.id:
            raise exception(KafkaError._NOT_CONFIGURED, "no transactional.id")
        if self._state not in ("new", "initialising"):
            raise exception(KafkaError._STATE, "initialised before")
        self._state = "initialising"
        patience = float(self.config.get("transaction.timeout.ms", 60_000)) / 1000

        def work() -> tuple[int, int]:
            return self.cluster.coordinator.initialise(self.id, patience)

        self._producer, self._epoch = self.asked("init producer", ("transaction", self.id), work, timeout, _AGAIN)
        self._state = "ready"

    def begin(self) -> None:
        """Begins; nothing is sent."""
        self._check("ready")
        self._state, self._has_part, self._abortable = "open", False, None
        self._members.clear()
        self._adding.clear()

    def send_offsets(self, positions: Sequence[TopicPartition], metadata: Any, timeout: float) -> None:
        """Adds offsets to the transaction."""
        self._check("open")
        group, member, generation = read_group_metadata(metadata)
        offsets = {
            (tp.topic, tp.partition): Committed(tp.offset, tp.metadata or "") for tp in positions if tp.offset >= 0
        }
        if not offsets:
            return
        self._has_part = True
        end = self.scheduler.now + timeout
        id_, producer, epoch = self.id, self._producer, self._epoch
        coordinator = self.cluster.coordinator
        self._done(
            "AddOffsetsToTxn", ("transaction", id_), lambda: coordinator.add(id_, producer, epoch, [], group), timeout
        )
        self._done(
            "TxnOffsetCommit",
            ("group", group),
            lambda: self.cluster.group(group).commit_within(producer, member, generation, offsets),
            end - self.scheduler.now,
        )

    def end(self, timeout: float, *, commit: bool) -> None:
        """Ends the transaction; whether it did is not known when this raises that time is up."""
        until = self.scheduler.now + timeout
        if self._fatal is not None:
            raise exception(self._fatal.code(), self._fatal.str(), fatal=True)
        if self._state != ("committing" if commit else "aborting"):
            if not commit and self._state == "committing":
                raise exception(KafkaError._CONFLICT, "a commit is under way")
            self._check("open", aborting=not commit)
        if commit:
            self._state = "committing"
            self.flush(timeout)
            if self._abortable is not None:
                self._state = "open"
                raise exception(self._abortable.code(), self._abortable.str(), abort=True)
            if self.left:
                raise exception(KafkaError._TIMED_OUT, "records are not delivered", retriable=True)
        else:
            self._state = "aborting"
            self.purge()
            while self._sending and self.scheduler.now < until:
                self.pause(min(0.05, until - self.scheduler.now))
                self.serve()
        if self._has_part:
            id_, producer, epoch, coordinator = self.id, self._producer, self._epoch, self.cluster.coordinator
            self._done(
                "EndTxn",
                ("transaction", id_),
                lambda: coordinator.end(id_, producer, epoch, commit=commit),
                until - self.scheduler.now,
            )
        self._state, self._abortable = "ready", None

    def _check(self, state: str, *, aborting: bool = False) -> None:
        if self._fatal is not None:
            raise exception(self._fatal.code(), self._fatal.str(), fatal=True)
        if self._abortable is not None and not aborting:
            raise exception(self._abortable.code(), self._abortable.str(), abort=True)
        if self._state != state:
            raise exception(KafkaError._STATE, f"this producer is {self._state}")

    def _done(self, what: str, key: tuple[str, ...], work: Callable[[], Any], timeout: float) -> None:
        """Asks for a step of the transaction, and turns what is refused into its error."""

        def begin(done: Callable[[Any], None]) -> None:
            self.ask(what, key, lambda reply: reply(work()), done, timeout, _AGAIN)

        value = self.awaited(begin, timeout)
        if isinstance(value, Refused):
            if value.code == KafkaError._TIMED_OUT:
                raise exception(value.code, what, retriable=True)
            self._refused(value.code, what)
            error = self._fatal or self._abortable
            if error is not None:
                raise exception(error.code(), error.str(), fatal=self._fatal is not None, abort=self._fatal is None)

    def _refused(self, code: int, what: str) -> None:
        if code in _FENCING:
            self._die(failure(KafkaError._FENCED, f"{what}: another producer has this id", fatal=True))
        elif code in (INVALID_STATE, UNKNOWN_ID):
            self._die(failure(code, what, fatal=True))
        else:
            self._abortable = self._abortable or failure(code, what, abort=True)

    def _die(self, error: KafkaError) -> None:
        if self._fatal is None:
            self._fatal = error
            for queue in self._queues.values():
                while queue:
                    self._delivered(queue.popleft(), error, -1)
            self._error(failure(KafkaError._FATAL, error.str(), fatal=True))


def as_bytes(given: bytes | str | None) -> bytes | None:
    """Text as UTF-8, as confluent-kafka takes it."""
    return given.encode() if isinstance(given, str) else given
