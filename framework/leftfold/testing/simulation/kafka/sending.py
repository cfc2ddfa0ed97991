"""The background work of a simulated producer: batches of records with sequence numbers, as librdkafka sends them."""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from confluent_kafka import KafkaError, Message

from leftfold.model.keys import partition_of
from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.kafka.client import FOREVER, SimulatedClient, exception, failure
from leftfold.testing.simulation.kafka.group_coordinator import PartitionId
from leftfold.testing.simulation.kafka.partitions import BrokerError, Headers, Partition, ProducedBatch

__all__ = ["EPOCH", "INVALID_STATE", "OUT_OF_ORDER", "SENDERS", "BackgroundSender", "as_bytes"]

EPOCH, OUT_OF_ORDER, DUPLICATE, INVALID_STATE = 47, 45, 46, 48
SENDERS = "senders"
"""The key in the world's `parts` under which all senders are kept."""
_UNKNOWN_TOPIC = 3
_GAPLESS = KafkaError._GAPLESS_GUARANTEE
_LARGEST = 1_000_000
_MOST = 1000
_LOOK_SECONDS = 0.1
_SCAN_SECONDS = 1.0


class QueuedRecord:
    """A record in a producer's queue."""

    __slots__ = ("headers", "key", "on_delivery", "place", "timestamp", "until", "value")

    def __init__(
        self,
        place: PartitionId,
        record: tuple[bytes | None, bytes | None, Headers, int],
        on_delivery: Any,
        until: float,
    ) -> None:
        self.place, self.on_delivery, self.until = place, on_delivery, until
        self.key, self.value, self.headers, self.timestamp = record

    @property
    def weight(self) -> int:
        """The approximate size in bytes."""
        return 70 + len(self.key or b"") + len(self.value or b"")


class BackgroundSender(SimulatedClient):
    """The background work of a producer.

    Attributes:
        unserved: records whose delivery reports were not served yet; they count as queued until then.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None) -> None:
        super().__init__(config, logger, "producer")
        self.id = str(self.config.get("transactional.id", "") or "")
        self._is_idempotent = bool(self.id) or str(self.config.get("enable.idempotence", False)).lower() == "true"
        self._linger = float(self.config.get("linger.ms", 5)) / 1000
        default = self.config.get("transaction.timeout.ms", 60_000) if self.id else 300_000
        self._patience = float(self.config.get("message.timeout.ms", default)) / 1000 or FOREVER
        self._learning = float(self.config.get("topic.metadata.propagation.max.ms", 30_000)) / 1000
        self._most = int(self.config.get("queue.buffering.max.messages", 100_000))
        self._is_gapless = str(self.config.get("enable.gapless.guarantee", False)).lower() == "true"
        self._only_errors = bool(self.config.get("delivery.report.only.error", False))
        self.left = self.unserved = 0
        self._queues: dict[PartitionId, deque[QueuedRecord]] = {}
        self._sending: dict[PartitionId, list[QueuedRecord]] = {}
        self._sequences: dict[PartitionId, int] = {}
        self._unknown: dict[str, float] = {}
        self._producer, self._epoch = -1, -1
        self._is_asking = self._is_bumping = False
        self._fatal: KafkaError | None = None
        self._is_due = self._is_scanning = self._is_looking = False
        active().parts.setdefault(SENDERS, []).append(self)

    # Overridden by a producer with transactions.

    def _may_produce(self) -> bool:
        return True

    def _may_send(self) -> bool:
        return True

    def _opened(self, places: list[PartitionId]) -> list[PartitionId]:
        """The partitions of these that may be written to now."""
        return places

    def _failed(self, code: int) -> bool:
        """Handles the final refusal of a batch; whether its records are sent once more."""
        if code in (OUT_OF_ORDER, KafkaError._MSG_TIMED_OUT):
            # The batch may be in the log: sequence numbers restart under another epoch once nothing is in flight.
            self._is_bumping = self._is_idempotent
        return code == OUT_OF_ORDER

    def _lost(self, error: KafkaError) -> None:
        """Handles a record that was not delivered."""

    # Calls of the application.

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
            raise exception(KafkaError._FATAL, self._fatal.str())
        if not self._may_produce():
            raise exception(KafkaError._STATE, "no transaction is open")
        if self.left + self.unserved >= self._most:
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
        encoded = QueuedRecord(
            (topic, partition), (key, value, headers or None, when), on_delivery, self.scheduler.now + self._patience
        )
        self._queues.setdefault(encoded.place, deque()).append(encoded)
        self.left += 1
        self._later(self._linger)
        self._scan_later()

    def poll(self, timeout: float) -> int:
        """Serves the queued events; raises once that the producer has a fatal error."""
        if not self._events and timeout != 0:
            self.pause(1e9 if timeout < 0 else timeout)
        return self.serve()

    def serve(self) -> int:
        """Serves the queued events."""
        self.unserved = 0
        return super().serve()

    def flush(self, timeout: float) -> int:
        """Waits until no record is in flight."""
        end = self.scheduler.now + timeout
        self._pump()
        self.serve()
        while self.left and self.scheduler.now < end:
            self.pause(min(end - self.scheduler.now, 1e9))
            self.serve()
        self.serve()
        return self.left

    def purge(self, *, in_flight: bool = False) -> None:
        """Discards the records that are queued and, if wanted, those in flight, for which a gapless producer dies."""
        for queue in self._queues.values():
            while queue:
                self._delivered(queue.popleft(), failure(KafkaError._PURGE_QUEUE, "purged"), -1)
        if in_flight and self._sending and self._is_gapless:
            self._die(failure(_GAPLESS, "records in flight were purged", fatal=True))

    def break_down(self) -> None:
        """Causes a fatal error of a producer without transactions, as librdkafka's own tests do."""
        if self._is_idempotent and not self.id and not self.is_closed:
            self._die(failure(KafkaError._FATAL, "provoked", fatal=True))

    # Background work.

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

            self.scheduler.call_later(seconds + self.scheduler.jitter(), partial(self.process.do, due))

    def _scan_later(self) -> None:
        """Checks every second for records that have waited too long."""
        if not self._is_scanning:
            self._is_scanning = True

            def scan() -> None:
                self._is_scanning = False
                for queue in self._queues.values():
                    self._expire(queue)
                if self.left:
                    self._scan_later()

            self.later(_SCAN_SECONDS, scan)

    def _expire(self, queue: deque[QueuedRecord]) -> None:
        found = 0
        while queue and queue[0].until <= self.scheduler.now:
            self._delivered(queue.popleft(), failure(KafkaError._MSG_TIMED_OUT, "not delivered in time"), -1)
            found += 1
        if found:
            self._failed(KafkaError._MSG_TIMED_OUT)

    def _pump(self) -> None:
        """Sends the batches that may be sent."""
        if self.is_closed or self._fatal is not None or not self._may_send():
            return
        if self._is_idempotent and self._producer < 0:
            self._identify()
            return
        if self._is_bumping and not self.id:
            if self._sending:
                return
            self._is_bumping = False
            self._epoch += 1
            self._sequences.clear()
        waiting = [place for place, queue in self._queues.items() if queue and place not in self._sending]
        for place in self._opened([place for place in waiting if self._is_known(place)]):
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

    def _is_known(self, place: PartitionId) -> bool:
        """Whether a partition exists; if not, its topic's metadata is requested for a while."""
        topic, queue = self.cluster.topics.get(place[0]), self._queues[place]
        if topic is not None and 0 <= place[1] < len(topic.partitions):
            self._unknown.pop(place[0], None)
            return True
        code = _UNKNOWN_TOPIC
        if topic is None:
            since = self._unknown.setdefault(place[0], self.scheduler.now)
            if self.scheduler.now - since < self._learning:
                self._look_later()
                return False
        elif place[1] < 0:
            while queue:
                encoded = queue.popleft()
                encoded.place = (place[0], self._choose(encoded.key, len(topic.partitions)))
                self._queues.setdefault(encoded.place, deque()).append(encoded)
            self._later(0.0)
        else:
            code = KafkaError._UNKNOWN_PARTITION
        while queue:
            self._delivered(queue.popleft(), failure(code, place[0]), -1)
        return False

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True

            def look() -> None:
                self._is_looking = False
                self._pump()

            self.later(_LOOK_SECONDS, look)

    def _send(self, place: PartitionId) -> None:
        """Sends a batch to one partition; the next one waits for its answer."""
        queue, now = self._queues[place], self.scheduler.now
        self._expire(queue)
        if not queue or (self._is_idempotent and self._is_bumping):
            return
        parcels: list[QueuedRecord] = []
        room = int(self.config.get("batch.size", _LARGEST))
        while queue and len(parcels) < _MOST and (not parcels or room >= queue[0].weight):
            room -= queue[0].weight
            parcels.append(queue.popleft())
        self._sending[place] = parcels
        sequence = self._sequences.get(place, 0)
        records = [(p.key, p.value, p.headers, p.timestamp) for p in parcels]
        batch = (
            ProducedBatch(records, self._producer, self._epoch, sequence, bool(self.id))
            if self._is_idempotent
            else ProducedBatch(records)
        )

        def work(reply: Callable[[Any], None]) -> None:
            partition = self.cluster.partition(*place)
            if sum(p.weight for p in parcels) > int(partition.topic.config["max.message.bytes"]):
                raise BrokerError(KafkaError.MSG_SIZE_TOO_LARGE)
            self._verify(partition, batch)
            reply(partition.append(batch, int(self.cluster.time() * 1000)))

        def done(value: Any) -> None:
            self._sending.pop(place, None)
            self._sequences[place] = sequence + len(parcels)
            self._answered(place, parcels, value)
            self._pump()

        seconds = max(0.01, parcels[-1].until - now)
        self.ask("produce", ("partition", place[0], str(place[1])), work, done, seconds, again=self._may_send)

    def _verify(self, partition: Partition, batch: ProducedBatch) -> None:
        """The check that a broker makes at the coordinator before the first records of a transaction (KIP-890)."""
        if not batch.is_transactional or batch.producer in partition.open:
            return
        coordinator = self.cluster.coordinator
        if not coordinator.holds(self.id, batch.producer, batch.epoch, partition):
            raise BrokerError(EPOCH if coordinator.known[self.id].epoch > batch.epoch else INVALID_STATE)

    def _answered(self, place: PartitionId, parcels: list[QueuedRecord], value: Any) -> None:
        """Handles the answer to a batch: its records are delivered, lost, or queued once more."""
        code = value.code if isinstance(value, BrokerError) else 0
        if code in (0, DUPLICATE):
            for index, encoded in enumerate(parcels):
                self._delivered(encoded, None, value + index if not code else -1)
            return
        if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
            code = KafkaError._MSG_TIMED_OUT
            if not self._may_send():
                # Records to retry wait behind the end of the transaction, where nothing is sent.
                self._queues[place].extendleft(reversed(parcels))
                return
        if self._failed(code):
            self._queues[place].extendleft(reversed(parcels))
            return
        for encoded in parcels:
            self._delivered(encoded, failure(code, "not delivered"), -1)
        if self._is_gapless:
            self._die(failure(_GAPLESS, "unable to satisfy gap-less guarantee", fatal=True))

    def _delivered(self, encoded: QueuedRecord, error: KafkaError | None, offset: int) -> None:
        self.left -= 1
        self.unserved += 1
        if error is not None:
            self._lost(error)
        if encoded.on_delivery is not None and not (error is None and self._only_errors):
            topic, partition = encoded.place
            message = Message(
                topic=topic, partition=partition, offset=offset, key=encoded.key, value=encoded.value,
                headers=cast("Any", encoded.headers), error=error, timestamp=(1, encoded.timestamp),
            )  # fmt: skip
            on_delivery = encoded.on_delivery
            self.tell(lambda: on_delivery(error, message))
        elif not self.left:
            self.notify()

    def _die(self, error: KafkaError) -> None:
        """Stops the sender with a fatal error, which the application gets on poll."""
        if self._fatal is not None:
            return
        self._fatal = error
        for queue in self._queues.values():
            while queue:
                self._delivered(queue.popleft(), failure(KafkaError._FATAL, error.str()), -1)

        def tell() -> None:
            raise exception(error.code(), error.str(), fatal=True)

        self.tell(tell)


def as_bytes(given: bytes | str | None) -> bytes | None:
    """Text as UTF-8, as confluent-kafka encodes it."""
    return given.encode() if isinstance(given, str) else given
