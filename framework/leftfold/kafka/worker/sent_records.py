"""Keeps what a worker has sent to topics of others, although a broker may forget to end its transaction there."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import MARK
from leftfold.errors import Fenced, LeftfoldError
from leftfold.kafka.errors import translated
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.kafka.worker.transactions import Committed, Transactions, behind, is_committed, pause_seconds
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import PartitionId, Report

__all__ = ["SentRecords", "SentWatch"]

_HELD, _CONTENDED, _GRACE, _PATIENCE, _PAUSE = 0.02, 0.2, 1.0, 30.0, 0.1
_EVERY, _AFTER_FAILURE, _STUCK = 5.0, 60.0, 25.0


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
        self._held = frozenset[PartitionId]()
        """Where others had transactions open for longer than the worker waits; there it hardly waits the next time."""

    def keep(self, ends: Mapping[PartitionId, int], sent: Mapping[str, Sequence[Outgoing]]) -> None:
        """Returns once no later transaction of this worker can abort what a committed one has sent.

        Args:
            ends: the end offsets where it was sent. sent: the records, by topic.

        Raises:
            Fenced: as `Transactions.run`; or what was sent has not ended somewhere for 30 s. This process must end, and
                the next one ends the transaction.
        """
        if not ends:
            return
        deadline = time.monotonic() + _PATIENCE
        open_ = self._wait(ends, _HELD if self._held >= ends.keys() else _CONTENDED, deadline)
        self._held = frozenset(open_)
        for place, end in open_.items():
            self._end(place, end, [out for out in sent[place[0]] if out.partition == place[1]], deadline)

    def _wait(self, ends: Mapping[PartitionId, int], seconds: float, deadline: float) -> dict[PartitionId, int]:
        """Waits until the transaction has ended, or while no broker answers; returns where it has not by then."""
        open_, began = dict(ends), time.monotonic()
        until = began + seconds
        while True:
            try:
                open_, pause = behind(self._stable, open_), pause_seconds(time.monotonic() - began)
            except KafkaException:
                pause, until = _PAUSE, min(deadline, time.monotonic() + _GRACE)
            if not open_ or time.monotonic() > until:
                return open_
            time.sleep(pause)

    def _end(self, place: PartitionId, end: int, records: Sequence[Outgoing], deadline: float) -> None:
        """Commits one more transaction in a place.

        If that aborts, what it should have ended may be aborted with it: then the records are sent again, unless they
        can be read there. Receivers know their ids.
        """
        topic, partition = place
        barrier, is_doubtful = [Outgoing(partition, MARK, b"{}", self._marker)], False
        while not self._is_kept(place, end, deadline, is_doubtful=is_doubtful):
            if time.monotonic() > deadline:
                raise Fenced(
                    f"what was sent to {topic}[{partition}] has not ended for {_PATIENCE:.0f} s; this process ends, "
                    f"and the next one ends the transaction"
                )
            is_lost = is_doubtful and not self._wait({place: end}, 0.0, deadline)
            if is_lost:
                self._report("sent again", {"to": f"{topic}[{partition}]", "records": len(records)})
            self._transactions.refresh()
            result = self._transactions.run([(topic, records if is_lost else barrier)], [], None)
            if isinstance(result, Committed) and not is_doubtful:
                return
            if isinstance(result, Committed) and is_lost:
                end, is_doubtful = result.ends[place], False
            else:
                is_doubtful = True
                time.sleep(_PAUSE)

    def _is_kept(self, place: PartitionId, end: int, deadline: float, *, is_doubtful: bool) -> bool:
        """Whether the transaction has ended in a place, and the records are there if that is doubtful."""
        if self._wait({place: end}, _GRACE if is_doubtful else 0.0, deadline):
            return False
        try:
            return not is_doubtful or is_committed(self._stable, *place, end)
        except LeftfoldError:  # it may not read there
            return False


class SentWatch:
    """Ends transactions of a category's workers that a broker forgot where they had sent something, and only there.

    One worker of the category looks from time to time: no partition of its own shows them, and those who read there
    wait for ever. What it cannot do it reports: it is no reason to stop what works.

    Args:
        hanging: creates the handler of hanging transactions. topics: where the category sends something.
        own: the transactional id of this worker.
    """

    def __init__(self, hanging: Callable[[], Hanging], topics: Collection[str], own: str, report: Report) -> None:
        self._hanging, self._topics, self._own, self._report, self._due = hanging, topics, own, report, 0.0
        self._seen: dict[PartitionId, tuple[int, float]] = {}
        self._judged: set[tuple[PartitionId, int]] = set()
        """What is of others, or of none that the transaction log knows; it is looked at once."""

    def step(self) -> None:
        """Ends what has hung for longer than a transaction may take, when it is time to look."""
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + _EVERY
        try:
            hanging = self._hanging()
            stuck = [
                (place, begin) for place, (begin, since) in self._open(hanging, now).items() if now - since > _STUCK
            ]
        except KafkaException as error:
            self._fail("where commands were sent", error)
            return
        for place, begin in stuck:
            if (place, begin) not in self._judged:
                self._end(hanging, place, begin)

    def _end(self, hanging: Hanging, place: PartitionId, begin: int) -> None:
        at = f"{place[0]}/{place[1]}/{begin}"
        try:
            ended = hanging.end_sent(TopicPartition(*place), begin, self._own)
        except KafkaException as error:
            self._fail(at, error)
            return
        except LeftfoldError as error:
            ended = ""
            self._report("a transaction hangs", {"at": at, "why": str(error)})
        if ended:
            self._report("ended a transaction", {"of": ended, "at": at})
        elif ended is not None:
            self._judged.add((place, begin))

    def _fail(self, where: str, error: KafkaException) -> None:
        self._due = time.monotonic() + _AFTER_FAILURE
        self._report("not looked for what hangs", {"why": str(translated(error, doing=f"looking for it at {where}"))})

    def _open(self, hanging: Hanging, now: float) -> dict[PartitionId, tuple[int, float]]:
        """The last stable offsets that lie before open records, and since when each of them has been the same."""
        counts = ((topic, hanging.sent.get(topic, 0)) for topic in self._topics)
        places = [TopicPartition(topic, p, OFFSET_END) for topic, count in counts for p in range(count)]
        stable, ends = (
            {(tp.topic, tp.partition): tp.offset for tp in of.offsets_for_times(places, timeout=4.0) if not tp.error}
            if places
            else {}
            for of in (hanging.stable, hanging.uncommitted)
        )
        seen = {place: (offset, now) for place, offset in stable.items() if offset < ends.get(place, offset)}
        self._seen = seen | {place: one for place, one in self._seen.items() if seen.get(place, (-1, 0))[0] == one[0]}
        self._judged = {one for one in self._judged if seen.get(one[0], (-1, 0))[0] == one[1]}
        return self._seen
