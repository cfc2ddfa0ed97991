"""A simulated `confluent_kafka.Producer`, with transactions as librdkafka runs them (rdkafka_txnmgr.c)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from leftfold.testing.simulation.kafka.client import FOREVER, Metadata, cluster_metadata, exception, failure
from leftfold.testing.simulation.kafka.group_coordinator import CommittedOffset, PartitionId
from leftfold.testing.simulation.kafka.group_member import read_group_metadata
from leftfold.testing.simulation.kafka.partitions import BrokerError
from leftfold.testing.simulation.kafka.sending import EPOCH, INVALID_STATE, OUT_OF_ORDER, BackgroundSender, as_bytes

__all__ = ["Producer"]


UNKNOWN_TOPIC, UNKNOWN_ID, INVALID_TIMEOUT, CONCURRENT, FENCED = 3, 49, 50, 51, 90
_AGAIN = frozenset({CONCURRENT})
_FENCING = frozenset({EPOCH, FENCED})
_FATAL = frozenset({INVALID_STATE, UNKNOWN_ID, INVALID_TIMEOUT})


class TransactionalSender(BackgroundSender):
    """The background work of a producer with transactions; without a transactional id it has none.

    A call that times out continues in the background, and only the same call may follow it.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None) -> None:
        super().__init__(config, logger)
        self._state = "new"
        self._members: set[PartitionId] = set()
        self._adding: set[PartitionId] = set()
        self._has_part = False
        self._losses = 0
        self._abortable: KafkaError | None = None
        self._call = ""
        self._answer: list[Any] | None = None

    # Records.

    def _may_produce(self) -> bool:
        return not self.id or (self._state == "open" and self._abortable is None)

    def _may_send(self) -> bool:
        return not self.id or (self._state in ("open", "committing") and self._abortable is None)

    def _opened(self, places: list[PartitionId]) -> list[PartitionId]:
        if not self.id:
            return places
        if new := [p for p in places if p not in self._members and p not in self._adding]:
            self._add(new)
        return [place for place in places if place in self._members]

    def _failed(self, code: int) -> bool:
        if not self.id:
            return super()._failed(code)
        if code in (OUT_OF_ORDER, KafkaError._MSG_TIMED_OUT):
            # Sequence numbers restart under another epoch, which the abort requests.
            self._is_bumping = True
        if code in _FENCING:
            self._refused(code, "Produce")
        else:
            self._spoil(KafkaError._TIMED_OUT if code == KafkaError._MSG_TIMED_OUT else code, "Produce")
        return code == OUT_OF_ORDER

    def _lost(self, error: KafkaError) -> None:
        self._losses += 1

    def _add(self, places: list[PartitionId]) -> None:
        """Adds partitions to the transaction, before records are written to them."""
        self._adding.update(places)
        self._has_part = True
        id_, producer, epoch = self.id, self._producer, self._epoch

        def work(reply: Callable[[Any], None]) -> None:
            found = [self.cluster.partition(*place) for place in places]
            self.cluster.coordinator.add(id_, producer, epoch, found)
            reply(None)

        def done(value: Any) -> None:
            self._adding.difference_update(places)
            if isinstance(value, BrokerError):
                self._refused(value.code, "AddPartitionsToTxn")
                return
            self._members.update(places)
            self._pump()

        self.ask("add partitions", ("transaction", id_), work, done, also=_AGAIN | {UNKNOWN_TOPIC})

    # Calls.

    def initialise(self, timeout: float) -> None:
        """Takes the transactional id: fences its earlier holder, and ends that one's open transaction."""
        self._enter("init_transactions", "new")
        value = self._awaited(self._take_id, timeout)
        if isinstance(value, BrokerError):
            self._raise(value.code, "InitProducerId")
        self._producer, self._epoch = value
        self._leave("ready")

    def begin(self) -> None:
        """Begins a transaction; it sends nothing."""
        self._enter("begin_transaction", "ready")
        self._leave("open")
        self._has_part, self._losses = False, 0
        self._members.clear()
        self._adding.clear()

    def send_offsets(self, positions: Sequence[TopicPartition], metadata: Any, timeout: float) -> None:
        """Adds offsets to the transaction."""
        group, member, generation = read_group_metadata(metadata)
        offsets = {
            (tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata) for tp in positions if tp.offset >= 0
        }
        if not offsets and not self._call:
            return
        self._enter("send_offsets_to_transaction", "open")
        self._has_part = True
        end = self.scheduler.now + timeout
        id_, producer, epoch = self.id, self._producer, self._epoch
        coordinator = self.cluster.coordinator

        def commit() -> None:
            coordinator.verify(id_, producer, epoch, group)
            self.cluster.group(group).commit_within(producer, member, generation, offsets)

        for what, key, work in (
            ("AddOffsetsToTxn", ("transaction", id_), lambda: coordinator.add(id_, producer, epoch, [], group)),
            ("TxnOffsetCommit", ("group", group), commit),
        ):
            value = self._asked_until(what, key, work, end)
            if isinstance(value, BrokerError):
                self._call = ""
                self._raise(value.code, what)
        self._leave("open")

    def end(self, timeout: float, *, commit: bool) -> None:
        """Ends the transaction; after a timeout the outcome is unknown."""
        until = self.scheduler.now + timeout
        name, state = ("commit_transaction", "committing") if commit else ("abort_transaction", "aborting")
        self._enter(name, state if self._call else "open", aborting=not commit)
        self._state = state
        if self._answer is None:
            if not commit:
                self.purge()
            if self.flush(timeout):
                raise exception(KafkaError._TIMED_OUT, "records are not delivered", retriable=True)
            if commit and self._losses and self._abortable is None:
                self._refused(KafkaError._INCONSISTENT, "records failed delivery")
            if self._fatal is not None or (commit and self._abortable is not None):
                self._leave("open")
                self._check(aborting=not commit)
        value: Any = None
        if self._is_bumping:
            value = self._awaited(lambda done: self._take_id(done, bump=True), until - self.scheduler.now)
        elif self._has_part:
            value = self._awaited(lambda done: self._ask_end(done, commit=commit), until - self.scheduler.now)
        if isinstance(value, BrokerError):
            self._raise(value.code, "EndTxn")
        if self._is_bumping:
            self._producer, self._epoch = value
            self._is_bumping = False
            self._sequences.clear()
        self._abortable = None
        self._leave("ready")

    # Answers.

    def _ask_end(self, done: Callable[[Any], None], *, commit: bool) -> None:
        id_, producer, epoch, coordinator = self.id, self._producer, self._epoch, self.cluster.coordinator

        def work(reply: Callable[[Any], None]) -> None:
            coordinator.end(id_, producer, epoch, commit=commit)
            reply(None)

        self.ask("EndTxn", ("transaction", id_), work, done, FOREVER, _AGAIN)

    def _take_id(self, done: Callable[[Any], None], *, bump: bool = False) -> None:
        patience = float(self.config.get("transaction.timeout.ms", 60_000)) / 1000
        mine = (self._producer, self._epoch) if bump else None

        def work(reply: Callable[[Any], None]) -> None:
            reply(self.cluster.coordinator.initialise(self.id, patience, mine))

        self.ask("init producer", ("transaction", self.id), work, done, FOREVER, _AGAIN)

    def _awaited(self, begin: Callable[[Callable[[Any], None]], None], timeout: float) -> Any:
        """Begins an operation, unless it is in progress since an earlier call, and waits for its answer.

        Raises:
            KafkaException: `_TIMED_OUT`; the operation continues.
        """
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("a simulated client waits outside a simulated process")
        if self._answer is None:
            self._answer = answer = []

            def done(value: Any) -> None:
                answer.append(value)
                self.notify()

            begin(done)
        until = self.scheduler.now + timeout
        while not self._answer and self.scheduler.now < until:
            self.pause(min(until - self.scheduler.now, 1e9))
        if not self._answer:
            raise exception(KafkaError._TIMED_OUT, self._call, retriable=True)
        return self._answer[0]

    def _asked_until(self, what: str, key: tuple[str, ...], work: Callable[[], Any], end: float) -> Any:
        """Retries a request until the timeout, and waits for the last answer however long it takes."""

        def begin(done: Callable[[Any], None]) -> None:
            self.ask(
                what, key, lambda reply: reply(work()), done, max(0.0, end - self.scheduler.now), _AGAIN, whole=True
            )

        return self.awaited(begin, FOREVER)

    def _enter(self, call: str, state: str, *, aborting: bool = False) -> None:
        """Begins a call.

        Raises:
            KafkaException: `_CONFLICT`: another one is in progress; `_STATE`; or the error that made the transaction
                abortable.
        """
        if not self.id:
            raise exception(KafkaError._NOT_CONFIGURED, "no transactional.id")
        if self._call and self._call != call:
            raise exception(KafkaError._CONFLICT, f"{self._call} is under way", retriable=True)
        if self._state != "ready" or self._fatal is not None:
            self._check(aborting=aborting)
        if self._state != state:
            raise exception(KafkaError._STATE, f"this producer is {self._state}")
        self._call = call

    def _leave(self, state: str) -> None:
        self._state, self._call, self._answer = state, "", None

    def _check(self, *, aborting: bool = False) -> None:
        if self._fatal is not None:
            raise exception(self._fatal.code(), self._fatal.str(), fatal=True)
        if self._abortable is not None and not aborting:
            raise exception(self._abortable.code(), self._abortable.str(), abort=True)

    def _raise(self, code: int, what: str) -> None:
        """Raises the error for a refused request."""
        self._refused(code, what)
        self._leave(self._state)
        self._check()

    def _refused(self, code: int, what: str) -> None:
        if code in _FENCING:
            self._die(failure(KafkaError._FENCED, f"{what}: another producer has this id", fatal=True))
        elif code in _FATAL:
            self._die(failure(code, what, fatal=True))
        else:
            self._spoil(code, what)

    def _spoil(self, code: int, what: str) -> None:
        """Marks the transaction as abortable: it can only be aborted."""
        self._abortable = self._abortable or failure(code, what, abort=True)


class Producer:
    """`confluent_kafka.Producer` over the active world."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None, **more: Any) -> None:
        self._sender = TransactionalSender({**config, **more}, logger)

    def __del__(self) -> None:
        # As in the real one: when it is dropped, its queued records are discarded.
        sender = getattr(self, "_sender", None)
        if sender is not None:
            sender.is_closed = True

    def __len__(self) -> int:
        return self._sender.left + self._sender.unserved

    def __bool__(self) -> bool:
        return True

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queues a record."""
        self._sender.step("produce")
        report = on_delivery or callback
        self._sender.produce(topic, as_bytes(value), as_bytes(key), partition, report, timestamp, headers)

    def poll(self, timeout: float = -1) -> int:
        """Waits for delivery reports and serves them."""
        self._sender.step("poll")
        return self._sender.poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Waits until all records are delivered; returns how many are not."""
        self._sender.step("flush")
        return self._sender.flush(FOREVER if timeout < 0 else timeout)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Discards the queued records, and those in flight, which may arrive all the same."""
        self._sender.purge(in_flight=in_flight)

    def close(self) -> bool:
        """Ends the background work."""
        self._sender.is_closed = True
        return True

    def init_transactions(self, timeout: float = -1) -> None:
        """Takes the transactional id."""
        self._sender.step("init_transactions")
        self._sender.initialise(FOREVER if timeout < 0 else timeout)

    def begin_transaction(self) -> None:
        """Begins a transaction."""
        self._sender.step("begin_transaction")
        self._sender.begin()

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """Commits offsets with the transaction."""
        self._sender.step("send_offsets_to_transaction")
        self._sender.send_offsets(positions, group_metadata, FOREVER if timeout < 0 else timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commits the transaction."""
        self._sender.step("commit_transaction")
        self._sender.end(FOREVER if timeout < 0 else timeout, commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Aborts the transaction."""
        self._sender.step("abort_transaction")
        self._sender.end(FOREVER if timeout < 0 else timeout, commit=False)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        """The brokers' metadata of topics."""
        self._sender.step("list_topics")
        return cluster_metadata(self._sender, topic, FOREVER if timeout < 0 else timeout)
