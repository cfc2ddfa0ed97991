"""The producer of a router: it writes the inputs of a process in order, without gaps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import QuietLog, code_of, translated
from leftfold.kafka.records import KafkaMessage
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId

__all__ = ["InputProducer"]


_MOST = 5000
"""Maximum number of unacknowledged records."""
_ANSWER_SECONDS, _CAUSE_SECONDS = 20.0, 0.1
_CONSEQUENCES = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL})
"""The errors of records that fail because an earlier one did."""
_KNOWN_FOR = 3600.0
"""A broker keeps the sequence numbers of a producer for `producer.id.expiration.ms`, a day by default."""


class InputProducer:
    """Writes process inputs in order: none is written behind one that is not. `ends` are the known next offsets.

    A process instance that saw a later input would treat a missing one as a duplicate afterwards. librdkafka ends with
    a fatal error at a gap (`enable.gapless.guarantee`), and brokers refuse a gap in the sequence numbers of a producer
    that they know; so the first record to a partition is one that is not an input.

    Args:
        stop: ends every wait when it is set.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, partitions: int, max_bytes: int, stop: threading.Event
    ) -> None:
        self._topic, self._stop = topic, stop
        self.failure: LeftfoldError | None = None
        self._is_known, self._has_cause = False, True
        """Whether the failure is that of the first record, and whether no other report of it is awaited."""
        self.ends: dict[int, int] = {}
        self._known: dict[int, float] = dict.fromkeys(range(partitions), float("-inf"))
        self._open: dict[PartitionId, int] = {}
        """The number of unacknowledged records of each partition that has some."""
        self._moved: dict[PartitionId, float] = {}
        """When a record of each such partition was last acknowledged, or the first one written."""
        self._producer = Producer(
            {
                **settings.librdkafka(),
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "linger.ms": 2,
                "batch.size": min(262_144, max_bytes),
                "message.max.bytes": min(max(max_bytes, 1_000_000), 1_000_000_000),
                # No record fails alone: `poll` ends the producer when a partition acknowledges none for 20 s.
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 1000,
            },
            logger=QuietLog("router", ignored="enable.gapless.guarantee is experimental"),
        )

    @property
    def is_full(self) -> bool:
        """Whether too many records are not acknowledged yet."""
        return sum(self._open.values()) >= _MOST

    def mark_all(self) -> bool:
        """Writes a record that is not an input to every partition; records of other writers come before it.

        False if this process is stopping.

        The end offset of a partition cannot be used: it is after transaction markers, which readers never reach.

        Raises:
            InfrastructureError: it is not written.
        """
        for partition in self._known:
            self._mark(partition)
        return self.flush(_ANSWER_SECONDS)

    def send(self, out: Outgoing, written: Callable[[], None], topic: str = "") -> None:
        """Writes a record; `written` is called once it is acknowledged, and never if this process is stopping.

        Args:
            topic: the topic to write to, if not that of the inputs.

        Raises:
            InfrastructureError: an earlier record is not written.
        """
        if not topic and time.monotonic() - self._known[out.partition] > _KNOWN_FOR:
            self._mark(out.partition)
            if not self.flush(_ANSWER_SECONDS):
                return
        self._produce(topic or self._topic, out.partition, out.key, out.value, out.headers, written)

    def report(self, topic: str, value: bytes) -> None:
        """Writes a value to another topic."""
        self._produce(topic, 0, None, value, [], lambda: None)

    def poll(self, wait: float = 0.0) -> None:
        """Calls the callbacks of acknowledged records.

        Raises:
            InfrastructureError: a record is not written, or a partition has acknowledged none for 20 s.
            ConfigurationError: this login may not write.
        """
        try:
            self._producer.poll(wait)
        except KafkaException as error:
            self._has_cause = False
            self.failure = self.failure or translated(error, doing=f"writing to {self._topic}")
        if self.failure is not None and not self._has_cause:
            # A fatal error and purged records come before the report of the record that caused them, which says more.
            self._has_cause = True
            with suppress(KafkaException):
                self._producer.poll(_CAUSE_SECONDS)
        late = time.monotonic() - _ANSWER_SECONDS
        for (topic, partition), moved in self._moved.items():
            if moved < late and self.failure is None:
                self.failure = InfrastructureError(
                    f"no broker acknowledged a record to {topic}[{partition}] within {_ANSWER_SECONDS:g} s: are the "
                    "brokers well? see: leftfold doctor"
                )
        if self.failure is not None:
            raise self.failure

    def flush(self, seconds: float, *, is_leaving: bool = False) -> bool:
        """Waits until all records are acknowledged; False if this process is stopping.

        Args:
            is_leaving: whether to wait although this process is stopping.

        Raises:
            InfrastructureError: a record is not written, in time or at all.
        """
        deadline = time.monotonic() + seconds
        while self._open:
            self.poll(0.1)
            if self._open and self._stop.is_set() and not is_leaving:
                return False
            if self._open and time.monotonic() > deadline:
                places = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(self._open))
                raise InfrastructureError(f"not all records are written to {places} within {seconds:g} s")
        return True

    def close(self) -> None:
        """Discards what is not written."""
        self._producer.purge(in_queue=True, in_flight=True)
        for _ in range(2):  # the first call ends at the fatal error that the purge of a record in flight is
            with suppress(KafkaException):
                self._producer.poll(0)
        with suppress(KafkaException):
            self._producer.close()

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
        place, report = (topic, partition), partial(self._delivered, written)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=report, headers=list(headers))
                break
            except BufferError:  # more bytes wait than may; `poll` raises when none is acknowledged
                self.poll(0.1)
            except KafkaException as error:
                found = translated(error, doing=f"writing to {topic}[{partition}]")
                if code_of(error) != KafkaError._FATAL:
                    raise found from error
                self.failure, self._has_cause = self.failure or found, False
                self.poll()  # it raises, with the cause where that is reported
        now = time.monotonic()
        self._open[place] = self._open.get(place, 0) + 1
        self._moved.setdefault(place, now)
        if topic == self._topic:
            self._known[partition] = now

    def _delivered(self, written: Callable[[], None], error: KafkaError | None, message: KafkaMessage) -> None:
        topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
        place = (topic, partition)
        self._open[place] -= 1
        self._moved[place] = time.monotonic()
        if not self._open[place]:
            del self._open[place], self._moved[place]
        if error is not None:
            is_cause = error.code() not in _CONSEQUENCES
            if self.failure is None or (is_cause and not self._is_known):
                self.failure, self._is_known = _not_written(topic, partition, error), is_cause
                self._has_cause = is_cause
            return
        if topic == self._topic:
            self.ends[partition] = max(offset + 1, self.ends.get(partition, 0))
        written()


def _not_written(topic: str, partition: int, error: KafkaError) -> LeftfoldError:
    found = translated(error, doing=f"a record is not written to {topic}[{partition}]")
    return found if isinstance(found, InfrastructureError | ConfigurationError) else InfrastructureError(str(found))
