"""Pending deliveries of events to a reaction, and the frontier of each partition when records finish out of order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from leftfold.errors import ContractError
from leftfold.model.reaction import Delivery, Reaction, idempotency_key
from leftfold.model.state_codec import time_at, version_in
from leftfold.ports.message_codec import MessageCodec, header, read_recorded
from leftfold.ports.outgoing import HeaderList, Outgoing, reason_of
from leftfold.ports.protocols import PartitionId, RawRecord

__all__ = ["DEAD_HEADERS", "Frontier", "PendingDelivery", "PendingReader", "parked"]


DEAD_HEADERS = frozenset({"dead_reason", "dead_source", "dead_reference", "attempts", "idempotency_key"})
"""The headers that a parked event has besides its own."""


@dataclass(eq=False, slots=True)
class PendingDelivery:
    """An event that is not done; `tries` counts the failed ones, `error` is why it cannot be tried.

    `taken` is where it was read: in the log, or where it is parked.
    """

    record: RawRecord
    event: Any
    delivery: Delivery
    tries: int = 0
    error: ContractError | None = None
    stream: tuple[str, int, bytes] = field(init=False)
    taken: tuple[PartitionId, int] = field(init=False)

    def __post_init__(self) -> None:
        self.stream = (self.record.topic, self.record.partition, self.record.key or b"")
        self.taken = (self.place, self.record.offset)

    @property
    def place(self) -> PartitionId:
        """The topic and partition of the event."""
        return self.record.place

    def next_delivery(self) -> Delivery:
        """The delivery that the next try gets."""
        return replace(self.delivery, attempt=self.tries + 1)


class PendingReader:
    """Reads the events of a reaction from records."""

    def __init__(self, reaction: Reaction[Any]) -> None:
        self._reaction = reaction
        self._codec: MessageCodec[Any] = MessageCodec(reaction.events)
        self._versions = {f"{s.category}.{s.name}": s.version for s in (c.__leftfold__ for c in reaction.events)}

    def read(self, record: RawRecord) -> PendingDelivery | None:
        """The event in a record, None when the reaction does not listen to it; broken ones have their `error`.

        Raises:
            ContractError: it is of a newer version than this code knows; a deployment with newer code can read it.
        """
        self._check_version(record)
        try:
            recorded = read_recorded(self._codec, record)
        except ContractError as error:
            return self._broken(record, error)
        if recorded is None:
            return None
        name = self._reaction.name
        delivery = Delivery(
            reaction=name,
            idempotency_key=idempotency_key(name, recorded.id),
            key=recorded.key,
            id=recorded.id,
            time=recorded.time,
            version=recorded.version,
            position=recorded.position,
            correlation_id=recorded.correlation_id,
            traceparent=recorded.traceparent,
            principal=recorded.principal,
        )
        return PendingDelivery(record, recorded.event, delivery)

    def _broken(self, record: RawRecord, error: ContractError) -> PendingDelivery:
        id_ = header(record.headers, "ce_id").decode(errors="replace")
        name, time = self._reaction.name, time_at(record.time)
        delivery = Delivery(reaction=name, idempotency_key=idempotency_key(name, id_), time=time)
        return PendingDelivery(record, None, delivery, 0, error)

    def _check_version(self, record: RawRecord) -> None:
        name, version = version_in(header(record.headers, "ce_type"))
        known = self._versions.get(name)
        if known is not None and version is not None and version > known:
            raise ContractError(
                f"reaction {self._reaction.name} meets {name} version {version} at {record.address} and knows {known}; "
                f"it waits there: deploy the code that knows it"
            )


def parked(pending: PendingDelivery, error: BaseException, partition: int, *, whole: bool = True) -> Outgoing:
    """The record that parks an event: as it was written, with reason, place, number of tries and idempotency key.

    Args:
        whole: False leaves its bytes in the log, since the copy would be too large.
    """
    record = pending.record
    headers: HeaderList = [
        *(record.headers if whole else ()),
        ("dead_reason", reason_of(error).encode()),
        ("dead_source", record.address.source.encode()),
        ("attempts", str(pending.tries).encode()),
        ("idempotency_key", pending.delivery.idempotency_key.encode()),
    ]
    if not whole:
        headers.append(("dead_reference", b"true"))
    return Outgoing(partition, record.key, record.value if whole else None, headers)


class Frontier:
    """The frontier of each partition: the oldest offset that is not done, from which a successor continues.

    Args:
        most_open: how many records of a partition may wait.
        most_ahead: how many may have been taken since the oldest that is not done: a successor does those again.
    """

    def __init__(self, *, most_open: int = 1000, most_ahead: int = 10_000) -> None:
        self._most_open, self._most_ahead = most_open, most_ahead
        self._reached: dict[PartitionId, int] = {}
        self._taken: dict[PartitionId, deque[int]] = {}
        self._done: dict[PartitionId, set[int]] = {}

    def hold(self, place: PartitionId, offset: int) -> None:
        """Starts a partition at an offset."""
        self._reached[place], self._taken[place], self._done[place] = offset, deque(), set()

    def drop(self, places: Iterable[PartitionId]) -> None:
        """Drops partitions that are assigned to another member."""
        for place in places:
            for known in (self._reached, self._taken, self._done):
                known.pop(place, None)

    def take(self, place: PartitionId, offset: int, *, is_open: bool) -> None:
        """Records that a record was read; one that is not open needs no work."""
        self._reached[place] = offset + 1
        if is_open:
            self._taken[place].append(offset)

    def reach(self, place: PartitionId, offset: int) -> None:
        """Records that all records before this offset are taken."""
        self._reached[place] = max(offset, self._reached[place])

    def done(self, place: PartitionId, offset: int) -> None:
        """Records that a record is done; a partition that is no longer held is ignored."""
        if place not in self._taken:
            return
        taken, done = self._taken[place], self._done[place]
        done.add(offset)
        while taken and taken[0] in done:
            done.remove(taken.popleft())

    @property
    def open(self) -> int:
        """How many records were taken and are not done."""
        return sum(len(taken) - len(self._done[place]) for place, taken in self._taken.items())

    def holds(self, place: PartitionId) -> bool:
        """Whether the partition is held."""
        return place in self._reached

    def reached(self, place: PartitionId) -> int:
        """The next offset to be read."""
        return self._reached[place]

    def is_full(self, place: PartitionId) -> bool:
        """Whether no more of the partition may be read for now."""
        taken = len(self._taken[place])
        return taken >= self._most_ahead or taken - len(self._done[place]) >= self._most_open

    def offsets(self) -> dict[PartitionId, int]:
        """The offset at which each partition continues if this process ends now."""
        return {place: taken[0] if taken else self._reached[place] for place, taken in self._taken.items()}
