"""Looks for transactions of dead workers that hang only where they have sent commands and answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from confluent_kafka import OFFSET_END, KafkaException, TopicPartition

from leftfold.errors import LeftfoldError
from leftfold.kafka.errors import translated
from leftfold.kafka.worker.hanging_transactions import Hanging
from leftfold.ports.protocols import PartitionId, Report

__all__ = ["SentWatch"]


_EVERY, _AFTER_FAILURE, _STUCK = 5.0, 60.0, 25.0


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
