"""Keeps what a worker has sent to topics of others, although a broker may forget to end its transaction there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import Consumer, KafkaException

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import MARK
from leftfold.errors import InfrastructureError
from leftfold.kafka.worker.transactions import Committed, Transactions, behind, is_committed
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId, Report

__all__ = ["SentRecords"]

_HELD, _CONTENDED, _GRACE, _PATIENCE = 0.02, 0.2, 1.0, 30.0
_Ends: TypeAlias = dict[PartitionId, int]


class SentRecords:
    """Commands of a process, or answers to processes, behind the transaction that has committed them.

    A broker that forgets to end it there leaves that to the next transaction of the same producer, which may abort. So
    the next one is a transaction of records that readers skip. Where no transaction is open, there is no need for it.

    Args:
        source: the `ce_source` of the worker's records.
    """

    def __init__(self, transactions: Transactions, stable: Consumer, source: bytes, report: Report) -> None:
        self._transactions, self._stable, self._report = transactions, stable, report
        self._marker = [*NO_INPUT, ("ce_source", source)]
        self._held = set[PartitionId]()
        """Where others had transactions open for longer than that moment, which is short there then."""

    def keep(self, ends: Mapping[PartitionId, int], sent: Mapping[str, Sequence[Outgoing]]) -> None:
        """Returns once no later transaction of this worker can abort what a committed one has sent.

        It waits a moment until the transaction has ended where it was sent, else commits one more there. If that one
        aborts, what it should have ended may be aborted with it: then it is sent again. Receivers know the ids.

        Args:
            ends: the end offsets where it was sent. sent: the records, by topic.

        Raises:
            Fenced: as `Transactions.run`.
        """
        left, began, pause, is_doubtful = dict(ends), time.monotonic(), 1e-5, False
        contended = began + (_HELD if self._held >= left.keys() else _CONTENDED)
        while left and time.monotonic() < began + _PATIENCE:
            try:
                open_ = behind(self._stable, left)
                if open_ and time.monotonic() > contended:
                    is_over = self._release(open_)
                    if is_over and not is_doubtful:
                        self._held = set(open_)
                        return
                    contended, is_doubtful = time.monotonic() + _CONTENDED, True
                elif not open_ and not is_doubtful:
                    left = {}
                elif not open_:
                    lost = {place: end for place, end in left.items() if not is_committed(self._stable, *place, end)}
                    again = self._send_again(lost, sent) if lost else {}
                    left, is_doubtful = again or lost, not again
            except (KafkaException, InfrastructureError):
                contended, pause = time.monotonic() + _GRACE, 0.1
            if left:
                time.sleep(pause)
                pause = min(2 * pause, 0.002) if not is_doubtful else 0.1
        self._held = set()
        if left:
            where = sorted(f"{topic}[{partition}]" for topic, partition in left)
            self._report("what was sent may be lost", {"where": where, "why": "its transaction has not ended there"})

    def _release(self, places: Iterable[PartitionId]) -> bool:
        """Commits a record that readers skip in each place; returns whether it did."""
        return bool(self._write((topic, [Outgoing(number, MARK, b"{}", self._marker)]) for topic, number in places))

    def _send_again(self, lost: Collection[PartitionId], sent: Mapping[str, Sequence[Outgoing]]) -> _Ends:
        """Sends the records of some places again; returns the ends to look at next."""
        self._report("sent again", {"to": sorted(f"{topic}[{partition}]" for topic, partition in lost)})
        return self._write(
            (topic, [out for out in records if (topic, out.partition) in lost]) for topic, records in sent.items()
        )

    def _write(self, writes: Iterable[tuple[str, Sequence[Outgoing]]]) -> _Ends:
        """Runs a transaction without offsets; returns its ends, none unless it is committed."""
        self._transactions.refresh()
        result = self._transactions.run(writes, [], None)
        return dict(result.ends) if isinstance(result, Committed) else {}
