"""The coordinator of transactions: holders of transactional ids, open transactions and their outcomes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any

from leftfold.testing.simulation.kafka.partitions import BrokerError, Partition, ProducedBatch

__all__ = ["Coordinator", "State", "Transaction"]

EPOCH, FENCED, CONCURRENT, INVALID_STATE, UNKNOWN_ID, INVALID_TIMEOUT = 47, 90, 51, 48, 49, 50
LONGEST = 900.0
"""The longest transaction timeout in seconds that a broker permits."""


class State(IntEnum):
    """The state of a transaction, numbered as in a coordinator's own log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


class Transaction:
    """The coordinator's record of a transactional id."""

    def __init__(self, id_: str, producer: int, timeout: float) -> None:
        self.id, self.producer, self.epoch, self.timeout = id_, producer, -1, timeout
        self.state, self.began = State.EMPTY, 0.0
        self.partitions: dict[Partition, None] = {}
        self.groups: dict[str, None] = {}
        self.left = 0
        self.version = 0
        self.asked: tuple[int, int] | None = None
        """The producer that requested another epoch and waits for the abort of its transaction."""


class Coordinator:
    """The transaction coordinator; its decisions are durable, and reach the partitions later, one by one.

    Args:
        now: seconds. later: schedules an action in a while, short or, now and then, long.
        mark: writes the marker of a transaction to a partition. settle: applies its outcome to a group.
        log: the partition of `__transaction_state` that holds an id.
    """

    def __init__(
        self,
        now: Callable[[], float],
        later: Callable[[str, Callable[[], None]], None],
        mark: Callable[[Partition, int, int, bool], None],
        settle: Callable[[str, int, bool], None],
        log: Callable[[str], Partition],
    ) -> None:
        self._now, self._later, self._mark, self._settle, self._log = now, later, mark, settle, log
        self.known: dict[str, Transaction] = {}
        self._next = 1000
        self.has_forgotten = False

    def new_producer(self) -> int:
        """A new producer id."""
        self._next += 1
        return self._next

    def initialise(self, id_: str, timeout: float, holder: tuple[int, int] | None = None) -> tuple[int, int]:
        """Assigns a transactional id to a producer: its producer id and an epoch that fences all earlier holders.

        Args:
            holder: producer id and epoch of a holder that requests another epoch (KIP-360).

        Raises:
            BrokerError: CONCURRENT_TRANSACTIONS, while a transaction of it is not ended everywhere; PRODUCER_FENCED:
                the holder is not the holder any more; INVALID_TRANSACTION_TIMEOUT.
        """
        if timeout > LONGEST:
            raise BrokerError(INVALID_TIMEOUT)
        found = self.known.get(id_)
        if found is None:
            found = self.known[id_] = Transaction(id_, self.new_producer(), timeout)
        if holder is not None and holder not in ((found.producer, found.epoch), found.asked):
            raise BrokerError(FENCED)
        found.timeout = timeout
        if found.state is State.ONGOING:
            # The earlier holder is fenced before its transaction is aborted.
            found.asked = holder
            found.epoch += 1
            self._decide(found, State.PREPARE_ABORT)
        if found.left:
            raise BrokerError(CONCURRENT)
        found.epoch += 1
        found.asked, found.state = None, State.EMPTY
        self._write(found)
        return found.producer, found.epoch

    def add(self, id_: str, producer: int, epoch: int, partitions: list[Partition], group: str = "") -> None:
        """Adds partitions, or the offsets of a group, to the transaction, which begins with the first.

        Raises:
            BrokerError: PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
        """
        found = self._checked(id_, producer, epoch)
        if found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            raise BrokerError(CONCURRENT)
        if found.state is not State.ONGOING:
            found.state, found.began = State.ONGOING, self._now()
            self._write(found)
        found.partitions.update(dict.fromkeys(partitions))
        if group:
            found.groups[group] = None

    def end(self, id_: str, producer: int, epoch: int, *, commit: bool) -> None:
        """Decides the open transaction, whichever that is by now: the request does not name a transaction.

        Raises:
            BrokerError: PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
        """
        found = self._checked(id_, producer, epoch)
        prepared = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        if found.state is State.ONGOING:
            self._decide(found, prepared)
        elif found.state is prepared:
            raise BrokerError(CONCURRENT)
        elif found.state is not State(prepared + 2):
            raise BrokerError(INVALID_STATE)

    def holds(self, id_: str, producer: int, epoch: int, partition: Partition) -> bool:
        """Whether this producer may write to a partition within its transaction."""
        found = self.known.get(id_)
        if found is None or found.producer != producer or found.epoch != epoch:
            return False
        return found.state is State.ONGOING and partition in found.partitions

    def verify(self, id_: str, producer: int, epoch: int, group: str) -> None:
        """The check that the coordinator of a group makes before it accepts offsets (KIP-890).

        Raises:
            BrokerError: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE: the group is no part of an open transaction.
        """
        found = self.known.get(id_)
        if found is None or found.producer != producer or found.epoch != epoch:
            raise BrokerError(EPOCH)
        if found.state is not State.ONGOING or group not in found.groups:
            raise BrokerError(INVALID_STATE)

    def time_out(self) -> None:
        """Aborts the transactions that exceeded their timeout."""
        for found in self.known.values():
            if found.state is State.ONGOING and self._now() - found.began > found.timeout:
                found.epoch += 1
                self._decide(found, State.PREPARE_ABORT)

    def open(self) -> list[Transaction]:
        """The transactions that are not decided, or whose outcome has not reached all partitions and groups."""
        return [t for t in self.known.values() if t.state is State.ONGOING or t.left]

    def forget(self, id_: str, chosen: Callable[[list[Partition]], list[Partition]]) -> bool:
        """Drops partitions that a coordinator killed after its decision never reaches; whether there are any."""
        found = self.known.get(id_)
        if found is None or not found.left or found.state not in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            return False
        lost = chosen([p for p in found.partitions if found.producer in p.open])
        for partition in lost:
            found.partitions.pop(partition, None)
            found.left -= 1
        self._finish(found)
        self.has_forgotten |= bool(lost)
        return bool(lost)

    def _checked(self, id_: str, producer: int, epoch: int) -> Transaction:
        found = self.known.get(id_)
        if found is None or found.producer != producer:
            raise BrokerError(UNKNOWN_ID)
        if epoch != found.epoch:
            raise BrokerError(FENCED)
        return found

    def _decide(self, found: Transaction, state: State) -> None:
        found.state = state
        self._write(found)
        found.version += 1
        found.left = len(found.partitions) + len(found.groups)
        commit, epoch, version = state is State.PREPARE_COMMIT, found.epoch, found.version

        def later(place: Partition | str, places: dict[Any, None], act: Callable[[], None]) -> None:
            def reach() -> None:
                if found.version == version and place in places:
                    act()
                    del places[place]
                    found.left -= 1
                    self._finish(found)

            self._later(found.id, reach)

        for partition in list(found.partitions):
            later(partition, found.partitions, lambda p=partition: self._mark(p, found.producer, epoch, commit))  # type: ignore[misc]
        for group in list(found.groups):
            later(group, found.groups, lambda g=group: self._settle(g, found.producer, commit))  # type: ignore[misc]
        self._finish(found)

    def _finish(self, found: Transaction) -> None:
        if found.left <= 0 and found.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            found.left = 0
            found.state = State(found.state + 2)
            found.partitions.clear()
            found.groups.clear()
            self._write(found)

    def _write(self, found: Transaction) -> None:
        """Writes to the log of transactions, of which readers use the first fields only."""
        fixed = 0, found.producer, found.epoch, int(found.timeout * 1000), found.state, len(found.partitions)
        value = b"".join((_FIXED.pack(*fixed), *(_packed(p.topic.name, p.number) for p in found.partitions)))
        now = int(self._now() * 1000)
        self._log(found.id).append(ProducedBatch([(_key(found.id), value, None, now)]), now)


_FIXED = struct.Struct(">hqhibi")


@lru_cache(1024)
def _key(id_: str) -> bytes:
    name = id_.encode()
    return struct.pack(">hh", 0, len(name)) + name


@lru_cache(1024)
def _packed(topic: str, partition: int) -> bytes:
    name = topic.encode()
    return struct.pack(f">h{len(name)}sii", len(name), name, 1, partition)
