"""A simulated `confluent_kafka.Consumer`: it fetches in the background and delivers records, ends and rebalances."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import KafkaError, Message, TopicPartition

from leftfold.testing.simulation.kafka.client import (
    FOREVER,
    Metadata,
    SimulatedClient,
    cluster_metadata,
    exception,
    failure,
)
from leftfold.testing.simulation.kafka.fetching import END, Fetched, Fetcher, leader
from leftfold.testing.simulation.kafka.group_coordinator import CommittedOffset, PartitionId
from leftfold.testing.simulation.kafka.group_member import Membership
from leftfold.testing.simulation.kafka.partitions import BrokerError

__all__ = ["Consumer"]

UNKNOWN_TOPIC, UNSTABLE = 3, 88
_MOMENT = 5e-5
"""How long a poll of an empty queue takes, so that a loop of polls ends."""


class Consumer:
    """`confluent_kafka.Consumer` over the active world."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None, **more: Any) -> None:
        self._reader = _Reader({**config, **more}, logger)

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.drop()

    def subscribe(
        self, topics: Sequence[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None
    ) -> None:
        """Joins the group with these topics."""
        self._reader.called("subscribe")
        self._reader.subscribe(self, tuple(topics), on_assign, on_revoke, on_lost)

    def unsubscribe(self) -> None:
        """Leaves the group."""
        self._reader.called("unsubscribe")
        self._reader.leave(self)

    def poll(self, timeout: float = -1) -> Any:
        """The next message, within a timeout."""
        self._reader.called("poll")
        return self._reader.poll(self, FOREVER if timeout < 0 else timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """As many messages as requested, or those that have come before the timeout."""
        self._reader.called("consume")
        return self._reader.consume(self, num_messages, FOREVER if timeout < 0 else timeout)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns exactly these partitions."""
        self._reader.called("assign")
        self._reader.assign(partitions, keep=False)

    def unassign(self) -> None:
        """Removes all partitions from the assignment."""
        self._reader.called("unassign")
        self._reader.unassign(None)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns further partitions."""
        self._reader.called("incremental_assign")
        self._reader.assign(partitions, keep=True)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Removes partitions from the assignment."""
        self._reader.called("incremental_unassign")
        self._reader.unassign([(tp.topic, tp.partition) for tp in partitions])

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return [TopicPartition(*place) for place in self._reader.fetcher.assigned]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stops fetching these partitions."""
        self._reader.called("pause")
        for tp in partitions:
            self._reader.fetcher.hold((tp.topic, tp.partition))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continues fetching behind the last delivered message of each partition."""
        self._reader.called("resume")
        for tp in partitions:
            self._reader.fetcher.release((tp.topic, tp.partition))

    def seek(self, partition: TopicPartition) -> None:
        """Continues at another offset."""
        self._reader.called("seek")
        self._reader.seek((partition.topic, partition.partition), partition.offset)

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset behind the last delivered message of each partition."""
        self._reader.called("position")
        places = [(tp.topic, tp.partition) for tp in partitions]
        return [TopicPartition(*place, self._reader.fetcher.position(place)) for place in places]

    def committed(self, partitions: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The committed offsets of the group for these partitions."""
        self._reader.called("committed")
        return self._reader.committed(partitions, FOREVER if timeout < 0 else timeout)

    def commit(self, message: Any = None, offsets: Any = None, asynchronous: bool = True) -> Any:
        """Commits offsets to the group."""
        self._reader.called("commit")
        if message is not None:
            offsets = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        return self._reader.commit(offsets, wait=not asynchronous)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """The first offset, and the end as this consumer's isolation sees it."""
        self._reader.called("get_watermark_offsets")
        return self._reader.watermarks((partition.topic, partition.partition), timeout, cached=cached)

    def offsets_for_times(self, partitions: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """The first offset at or after a time, or the end as this consumer's isolation sees it."""
        self._reader.called("offsets_for_times")
        return self._reader.offsets_at(partitions, FOREVER if timeout < 0 else timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        """The brokers' metadata of topics."""
        self._reader.called("list_topics")
        return cluster_metadata(self._reader, topic, FOREVER if timeout < 0 else timeout)

    def consumer_group_metadata(self) -> bytes:
        """The group metadata to send offsets of a transaction with."""
        self._reader.called("consumer_group_metadata")
        return self._reader.membership.metadata()

    def memberid(self) -> str | None:
        """The member id from the group, None before there is one."""
        return self._reader.membership.member or None

    def close(self) -> None:
        """Gives up the assignment, and leaves the group."""
        self._reader.step("close")
        if not self._reader.is_closed:
            self._reader.leave(self)
            self._reader.drop()


class _Reader(SimulatedClient):
    """The background work of a consumer."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None) -> None:
        super().__init__(config, logger, "consumer")
        self._queue: deque[Fetched | Callable[[Consumer], None] | KafkaError] = deque()
        self.fetcher = Fetcher(self, self._put)
        self.membership = Membership(self, self._rebalance, self._warn)
        self._callbacks: tuple[Any, Any, Any] = None, None, None
        self._is_handled = False

    def called(self, what: str) -> None:
        """Begins a call of the API.

        Raises:
            RuntimeError: the consumer is closed.
        """
        self.process.step(what)
        if self.is_closed:
            raise RuntimeError("Consumer closed")

    def drop(self) -> None:
        """Stops the background work."""
        self.is_closed = True
        self.fetcher.forget(list(self.fetcher.assigned))
        self._queue.clear()

    # The group.

    def subscribe(self, consumer: Consumer, topics: tuple[str, ...], *callbacks: Any) -> None:
        """Joins the group with these topics and callbacks."""
        self._callbacks = cast("tuple[Any, Any, Any]", callbacks)
        self.membership.subscribe(topics)

    def leave(self, consumer: Consumer) -> None:
        """Gives up the assignment and leaves, as `close` does."""
        if self.membership.topics:
            # A rebalance that the application has not seen is replaced by this one.
            self._queue.clear()
            if owned := sorted(self.membership.owned):
                self._call(consumer, owned, is_assignment=False)
            ended: list[bool] = []
            task, turn = self.scheduler.current, self.scheduler.current.turn if self.scheduler.current else 0

            def done() -> None:
                ended.append(True)
                if task is not None:
                    task.wake(turn)

            self.membership.leave(done)
            if not ended:
                self.scheduler.wait(5.0)
            self.membership.topics = ()
        self.unassign(None)

    def _rebalance(self, is_assignment: bool, places: list[PartitionId]) -> None:
        """Queues a rebalance callback for the application's poll, before or behind the waiting messages."""

        def event(consumer: Consumer) -> None:
            self._call(consumer, places, is_assignment=is_assignment)

        if self.scheduler.random.random() < 0.5:
            self._queue.appendleft(event)
        else:
            self._queue.append(event)
        self.notify()

    def _warn(self, code: int, why: str) -> None:
        self._queue.append(failure(code, why))
        self.notify()

    def _put(self, fetched: Fetched) -> None:
        self._queue.append(fetched)
        self.notify()

    def _call(self, consumer: Consumer, places: list[PartitionId], *, is_assignment: bool) -> None:
        on_assign, on_revoke, on_lost = self._callbacks
        self._is_handled = False
        partitions = [TopicPartition(*place) for place in places]
        callback = (
            on_assign if is_assignment else on_lost if self.membership.is_lost and on_lost is not None else on_revoke
        )
        try:
            if callback is not None:
                callback(consumer, partitions)
        finally:
            if not self._is_handled:
                if is_assignment:
                    self.assign(partitions, keep=True)
                else:
                    self.unassign(places)

    def assign(self, partitions: Sequence[TopicPartition], *, keep: bool) -> None:
        """Assigns partitions, instead of the present ones or beside them."""
        if not keep:
            self.fetcher.forget(list(self.fetcher.assigned))
        for tp in partitions:
            self.fetcher.add((tp.topic, tp.partition), tp.offset)
        self._handled()

    def unassign(self, places: Sequence[PartitionId] | None) -> None:
        """Removes partitions, None = all."""
        self.fetcher.forget(list(self.fetcher.assigned) if places is None else places)
        self._handled()

    def _handled(self) -> None:
        self._is_handled = True
        self.membership.settled()

    # Messages for the application.

    def poll(self, consumer: Consumer, timeout: float) -> Message[Any, Any] | None:
        """The next message, or None at the timeout."""
        taken = self.consume(consumer, 1, timeout)
        return taken[0] if taken else None

    def consume(self, consumer: Consumer, most: int, timeout: float) -> list[Message[Any, Any]]:
        """The available messages; waits until there are as many as requested, or for the timeout."""
        self.membership.polled = self.scheduler.now
        end = self.scheduler.now + timeout
        taken: list[Message[Any, Any]] = []
        while True:
            self.serve()
            while self._queue and len(taken) < most:
                item = self._queue.popleft()
                if isinstance(item, Fetched):
                    taken += self.fetcher.taken(item)
                elif isinstance(item, KafkaError):
                    taken.append(Message(error=item))
                else:
                    item(consumer)
                    self.membership.polled = self.scheduler.now
            left = end - self.scheduler.now
            if len(taken) >= most or left <= 0:
                if not taken and timeout <= 0:
                    self.scheduler.wait(_MOMENT)
                return taken
            self.pause(left)

    def seek(self, place: PartitionId, offset: int) -> None:
        """Continues at another offset.

        Raises:
            KafkaException: `_STATE`: the partition is not read yet; `_UNKNOWN_PARTITION`: its topic was never read.
        """
        if place[0] not in self.fetcher.topics and place[0] not in self.membership.topics:
            raise exception(KafkaError._UNKNOWN_PARTITION, "seek: nothing is known of this topic")
        self.fetcher.seek(place, offset)

    # Requests.

    def watermarks(self, place: PartitionId, timeout: float, *, cached: bool) -> tuple[int, int]:
        """The first offset and the end of a partition."""
        if cached:
            return self.fetcher.ends(place)

        def work() -> tuple[int, int]:
            partition = self.cluster.partition(*place)
            return partition.start, self.fetcher.end_of(partition)

        seconds = FOREVER if timeout < 0 else timeout
        value = self.awaited(lambda done: self.ask("list offsets", leader(place), _reply(work), done, seconds), seconds)
        found: tuple[int, int] = _listed(value)
        return found

    def offsets_at(self, wanted: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The offsets at times, or the ends, of several partitions."""
        if not wanted:
            raise exception(KafkaError._INVALID_ARG, "list offsets")
        found: dict[PartitionId, Any] = {}

        def begin(done: Callable[[Any], None]) -> None:
            for tp in wanted:
                place, at = (tp.topic, tp.partition), tp.offset

                def work(place: PartitionId = place, at: int = at) -> int:
                    partition = self.cluster.partition(*place)
                    return self.fetcher.end_of(partition) if at == END else partition.at(at)

                def answered(value: Any, place: PartitionId = place) -> None:
                    found[place] = value
                    if len(found) == len(wanted):
                        done(None)

                self.ask("list offsets", leader(place), _reply(work), answered, timeout)

        _listed(self.awaited(begin, timeout))
        return [TopicPartition(tp.topic, tp.partition, _listed(found[tp.topic, tp.partition])) for tp in wanted]

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        """The committed offsets; with read_committed only once no open transaction may change them."""
        group, places = self.membership.group, [(tp.topic, tp.partition) for tp in partitions]

        def work() -> list[CommittedOffset]:
            return [self.cluster.group(group).found(place, stable=self.fetcher.is_committed) for place in places]

        found = self.asked("offset fetch", ("group", group), work, timeout, frozenset({UNSTABLE}))
        return [
            TopicPartition(*place, one.offset, *(() if one.metadata is None else (one.metadata,)))
            for place, one in zip(places, found, strict=True)
        ]

    def commit(self, offsets: Sequence[TopicPartition], *, wait: bool) -> list[TopicPartition] | None:
        """Commits offsets as a member of the group."""
        member = self.membership
        name, generation = (member.member, member.generation) if member.topics else ("", -1)
        wanted = {(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata) for tp in offsets}

        def work() -> None:
            self.cluster.group(member.group).commit(name, generation, wanted)

        if wait:
            self.asked("offset commit", ("group", member.group), work, self.socket_timeout)
            return list(offsets)

        on_commit = self.config.get("on_commit")

        def done(value: Any) -> None:
            if on_commit is not None:
                error = failure(value.code, "offset commit") if isinstance(value, BrokerError) else None
                self._queue.append(lambda consumer: on_commit(error, list(offsets)))
                self.notify()

        self.ask("offset commit", ("group", member.group), _reply(work), done, 60.0)
        return None


def _reply(work: Callable[[], Any]) -> Callable[[Callable[[Any], None]], None]:
    """A handler that answers at once with the result of a function."""
    return lambda reply: reply(work())


def _listed(answer: Any) -> Any:
    """The answer to a request for offsets.

    Raises:
        KafkaException: it is an error; a missing topic is an unknown partition here.
    """
    if isinstance(answer, BrokerError):
        code = KafkaError._UNKNOWN_PARTITION if answer.code == UNKNOWN_TOPIC else answer.code
        raise exception(code, "list offsets")
    return answer
