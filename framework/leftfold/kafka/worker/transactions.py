"""Runs one Kafka transaction at a time, and replaces the producer whenever a request may still be pending."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from leftfold.errors import Fenced
from leftfold.kafka.errors import FENCED, NOT_ALLOWED, TOO_LARGE, QuietLog, code_of, translated
from leftfold.kafka.worker.transaction_log import records_between
from leftfold.ports.instruments import OPERATION_SECONDS, clock
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId

__all__ = [
    "REFUSED", "Aborted", "Committed", "Result", "Transactions", "Unknown", "Watchdog", "behind", "is_committed",
    "pause_seconds",
]  # fmt: skip


EXIT_CODE = 75


def _exit_process(what: str, seconds: float) -> None:
    sys.stderr.write(f"watchdog: {what} did not return within {seconds:.0f} s; this process ends to be restarted\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Watchdog:
    """A thread that ends the process when a guarded call exceeds its deadline.

    librdkafka#5456: `send_offsets_to_transaction` was seen to hang for 240 s.

    Args:
        expired: called with the name of the call and its deadline in seconds; by default ends the process with exit 75.
    """

    def __init__(self, expired: Callable[[str, float], None] = _exit_process) -> None:
        self._expired = expired
        self._guarded: dict[int, tuple[float, str, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """A context manager whose block must end within `seconds`."""
        mine = threading.get_ident()
        self._guarded[mine] = (time.monotonic() + seconds, what, seconds)
        try:
            yield
        finally:
            self._guarded.pop(mine, None)

    def close(self) -> None:
        """Stops the thread."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            now = time.monotonic()
            for deadline, what, seconds in list(self._guarded.values()):
                if now > deadline:
                    self._expired(what, seconds)


REFUSED = TOO_LARGE | {
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
}
"""Error codes of records that the broker will never accept."""
_COMMIT = {"messaging.system": "kafka", "messaging.operation.name": "commit", "messaging.operation.type": "settle"}
_TROUBLE = ("REQTMOUT", "FAIL", "TXNERR")
_GRACE, _UNANSWERED, OVERDUE, _DOUBTFUL = 1.0, 60.0, 5.0, 3.0


@dataclass(frozen=True)
class Committed:
    """A committed transaction; `ends` are the end offsets of the partitions that it wrote to."""

    ends: Mapping[PartitionId, int]


@dataclass(frozen=True)
class Aborted:
    """An aborted transaction: none of its records will be visible. `code` is the client's error code, or 0."""

    why: str
    code: int = 0


@dataclass(frozen=True)
class Unknown:
    """A transaction of unknown outcome, which the stable committed offset shows.

    `ends` as for Committed, `code` as for Aborted.
    """

    why: str
    ends: Mapping[PartitionId, int]
    code: int = 0


Result = Committed | Aborted | Unknown


class Transactions:
    """A transactional producer under one transactional id.

    Rotate when dirty: after any exception, any REQTMOUT, FAIL or TXNERR log line, an error callback or a slow call,
    the next transaction gets a new producer with the same id, whose `init_transactions` fences pending requests. A
    late EndTxn could otherwise commit a later, aborted transaction (librdkafka#5423).

    Args:
        timeout: seconds that one call may take before its outcome counts as unknown.
        rotate: False only in tests that show the failure without rotation.

    Attributes:
        longest: the transaction timeout in seconds.
    """

    def __init__(
        self, config: Mapping[str, Any], id_: str, watchdog: Watchdog, *, timeout: float = 5.0, rotate: bool = True
    ) -> None:
        self.id, self._timeout, self._rotates, self._watchdog = id_, timeout, rotate, watchdog
        self._slow = float(config.get("socket.timeout.ms", 10_000)) / 2000
        self._log = _Listening(self)
        self._config = {
            "enable.idempotence": True,
            "transaction.timeout.ms": 10_000,
            "socket.timeout.ms": 10_000,
            "retry.backoff.ms": 10,
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "compression.type": "none",
            "partitioner": "murmur2_random",
            **config,
            "transactional.id": id_,
            "error_cb": self._error,
        }
        self.longest = float(self._config["transaction.timeout.ms"]) / 1000
        self.dirty = ""
        self.rotations = -1
        self._producer = self._new()

    def refresh(self) -> None:
        """Replaces the producer if a request may still be pending, which aborts an open transaction.

        Raises:
            Fenced: as `run`.
        """
        self._producer.poll(0)
        if self.dirty and self._rotates:
            self._producer = self._new()

    def renew(self, why: str) -> None:
        """Replaces the producer, and returns once its last transaction is over.

        Raises:
            Fenced: as `run`.
        """
        self.dirty = why
        self.refresh()

    def run(
        self,
        writes: Iterable[tuple[str, Sequence[Outgoing]]],
        offsets: Sequence[TopicPartition],
        group: Any,
        *,
        destination: str = "",
    ) -> Result:
        """Writes records and offsets in one transaction; `destination` is the topic that measurements name.

        `writes` may decide commands lazily: it is consumed inside the transaction, and its errors go to the caller.
        Call `refresh` before each run.

        Raises:
            Fenced: another producer has this id; the process must end and never take the id again.
        """
        ends: dict[PartitionId, int] = {}
        try:
            with self._watchdog.within(3 * self._timeout, f"a transaction of {self.id}"):
                self._call(self._producer.begin_transaction)
                for topic, records in writes:
                    self._produce(topic, records, ends)
                # Offsets come before the flush: the partitions of the records are added to the transaction meanwhile.
                if offsets:
                    self._call(self._producer.send_offsets_to_transaction, list(offsets), group, self._timeout)
                if left := self._call(self._producer.flush, self._timeout):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} records not delivered"))
        except (KafkaException, BufferError) as error:
            self._mark_dirty(error)
            self._producer = self._new()
            return Aborted(str(error), code_of(error))
        except BaseException as error:
            self.dirty = f"interrupted by {error!r}"
            raise
        began = clock()
        try:
            with self._watchdog.within(2 * self._timeout, f"a commit of {self.id}"):
                self._call(self._producer.commit_transaction, self._timeout)
        except KafkaException as error:
            self._mark_dirty(error)
            self._producer = self._new()
            return Unknown(str(error), ends, code_of(error))
        OPERATION_SECONDS.record(clock() - began, {**_COMMIT, "messaging.destination.name": destination})
        self._producer.poll(0)
        return Committed(ends)

    def wait_ended(self, stable: Consumer, ends: Mapping[PartitionId, int]) -> None:
        """Waits until no transaction is open before the end offset of each partition that a committed one wrote to.

        After a long wait it looks whether the records are there: another worker may have ended the transaction
        meanwhile, and have been killed while it did, which aborts it.

        Args:
            stable: reads committed records. ends: of partitions that no other worker writes to.

        Raises:
            Fenced: it has ended, and hangs all the same, or was aborted; this process must end, and the next owner of
                its partitions ends the transaction, or writes its records again.
            InfrastructureError: no broker answered within 60 s.
        """
        open_, began = dict(ends), time.monotonic()
        unanswered, overdue, is_renewed = began + _UNANSWERED, began + OVERDUE, False
        while open_:
            try:
                open_ = behind(stable, open_)
            except KafkaException as error:
                if (now := time.monotonic()) > unanswered:
                    doing = f"asking for the ends of {', '.join(sorted({topic for topic, _ in ends}))}"
                    raise translated(error, doing=doing) from error
                overdue, pause = now + OVERDUE, 0.1
            else:
                if open_ and time.monotonic() > overdue:
                    hangs = ", ".join(sorted(f"{topic}[{partition}]" for topic, partition in open_))
                    if is_renewed:
                        raise Fenced(
                            f"a committed transaction hangs on {hangs}; this process ends, and the next owner of its "
                            f"partitions ends the transaction"
                        )
                    self.renew(f"a committed transaction has not ended on {hangs}")
                    overdue, is_renewed = time.monotonic() + _GRACE, True
                pause = pause_seconds(time.monotonic() - began)
            if open_:
                time.sleep(pause)
        if time.monotonic() - began > _DOUBTFUL:
            for (topic, partition), end in ends.items():
                if not is_committed(stable, topic, partition, end):
                    raise Fenced(
                        f"another worker ended a transaction that was committed on {topic}[{partition}]; this one ends"
                    )

    def close(self) -> None:
        """Drops the producer."""
        del self._producer

    def _produce(self, topic: str, records: Sequence[Outgoing], ends: dict[PartitionId, int]) -> None:
        produce: Any = self._producer.produce
        last = {record.partition: index for index, record in enumerate(records)}

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                ends[topic, int(message.partition() or 0)] = int(message.offset() or 0) + 1

        for index, (partition, key, value, headers) in enumerate(records):
            if last.get(partition) == index:
                produce(topic, value, key, partition, delivered, headers=headers)
            else:
                produce(topic, value, key, partition, headers=headers)

    def _call(self, function: Any, *args: Any) -> Any:
        began = time.monotonic()
        try:
            result = function(*args)
        except (AttributeError, SystemError) as error:
            # With a fatal error pending, confluent-kafka serves one more log line, fails there and raises this.
            raise Fenced(f"{self.id} met a fatal error of its client ({error}); this process ends") from error
        if time.monotonic() - began > self._slow:
            self.dirty = f"{function.__name__} took {time.monotonic() - began:.1f} s"
        return result

    def _new(self) -> Producer:
        """Creates and initialises a producer with this id, which ends the open transaction of an earlier one."""
        self.dirty = ""
        self.rotations += 1
        with self._watchdog.within(6 * self._timeout, f"init_transactions of {self.id}"):
            producer = Producer(self._config, logger=self._log)
            try:
                producer.init_transactions(3 * self._timeout)
            except KafkaException as error:
                if code_of(error) in NOT_ALLOWED:
                    raise translated(error, doing=f"taking transactional id {self.id}") from error
                raise Fenced(f"cannot take transactional id {self.id}: {error}") from error
        self.dirty = ""
        return producer

    def _mark_dirty(self, error: Exception) -> None:
        self.dirty = str(error)
        if code_of(error) in FENCED:
            raise Fenced(
                f"{self.id} is fenced: another worker took over its partitions, or it was too slow; this process ends"
            ) from error

    def _error(self, error: KafkaError) -> None:
        self.dirty = str(error)


class _Listening(QuietLog):
    """A client log that marks the producer dirty at lines about failed or timed-out requests."""

    def __init__(self, transactions: Transactions) -> None:
        super().__init__(f"transactions of {transactions.id}")
        self._transactions = transactions

    def handle(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith(_TROUBLE):
            self._transactions.dirty = line
        super().handle(record)


def behind(stable: Consumer, ends: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
    """Those of some end offsets that a consumer of committed records does not see yet.

    Raises:
        KafkaException: one of the partitions cannot be asked for its end.
    """
    found = stable.offsets_for_times([TopicPartition(*place, OFFSET_END) for place in ends], timeout=4.0)
    places = ((tp.topic, tp.partition) for tp in found if tp.error or tp.offset < ends[tp.topic, tp.partition])
    return {place: ends[place] for place in places}


def pause_seconds(seconds: float) -> float:
    """Seconds until the next look at what has been waited for so long: a short wait ends soon, a long one asks seldom.

    At most a quarter of the time is waited in vain, and a broker that has a transaction hang gets 50 requests a second.
    """
    return min(0.02, max(1e-5, seconds / 4))


def is_committed(stable: Consumer, topic: str, partition: int, end: int) -> bool:
    """Whether the last record before an end offset is committed, where no transaction is open before it.

    Raises:
        InfrastructureError: it cannot be read.
    """
    try:
        with closing(records_between(stable, TopicPartition(topic, partition), end - 1, end)) as records:
            return any(True for _ in records)
    except KafkaException as error:
        raise translated(error, doing=f"reading {topic}[{partition}]@{end - 1}") from error
