"""Runs handlers of reactions on threads, with a deadline, and tracks poison pills: events that may kill the process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from leftfold.engine.reactions.pending import PendingDelivery
from leftfold.errors import Fenced
from leftfold.model.reaction import Reaction
from leftfold.ports.instruments import ACT, ATTEMPT_SECONDS, clock, member
from leftfold.ports.protocols import PartitionId

__all__ = ["CLEAN", "DEATHS", "DeadlineExecutor", "PoisonPillTracker"]


class Ended(NamedTuple):
    """A try that has ended, and its error; `is_left`: its failure was already reported at its deadline."""

    pending: PendingDelivery
    error: BaseException | None
    is_left: bool = False


class DeadlineExecutor:
    """Runs tries of a handler on threads and reports their ends; one past its deadline counts as failed.

    Python cannot end a thread, so the thread of such a try is left running. Left threads are counted, and when there
    are far more than the tries of one event could leave, the process ends and must be restarted. Until it ends, such a
    thread may still do what kills the process.
    """

    def __init__(self, reaction: Reaction[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._reaction, self._clock = reaction, clock
        self._under_way: dict[int, tuple[PendingDelivery, float]] = {}
        self._left: dict[int, tuple[PendingDelivery, float]] = {}
        self._most_left = max(64, 2 * reaction.at_once * reaction.attempts)
        self._ends: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        self._number = count()

    @property
    def free(self) -> int:
        """How many more tries may start."""
        return self._reaction.at_once - len(self._under_way)

    def under_way(self) -> list[PendingDelivery]:
        """The deliveries that are being tried."""
        return [pending for pending, _ in self._under_way.values()]

    def left(self) -> list[PendingDelivery]:
        """The deliveries whose threads were left and have not ended."""
        return [pending for pending, _ in self._left.values()]

    def near(self) -> list[PendingDelivery]:
        """The deliveries being tried, and those left so recently that a death may be theirs.

        A thread that never ends counts for one `timeout` more: no delivery may wait for it for ever.
        """
        now = self._clock()
        return self.under_way() + [pending for pending, until in self._left.values() if now < until]

    def is_acting(self, pending: PendingDelivery) -> bool:
        """Whether any thread works on this event, left or not."""
        here = (pending.place, pending.record.offset)
        return any(here == (one.place, one.record.offset) for one in (*self.under_way(), *self.left()))

    def start(self, pending: PendingDelivery) -> None:
        """Starts a try on a thread."""
        number = next(self._number)
        self._under_way[number] = (pending, self._clock() + self._reaction.timeout)
        threading.Thread(
            target=self._run, args=(number, pending), name=f"{self._reaction.name}-{number}", daemon=True
        ).start()

    def ended(self, wait: float) -> list[Ended]:
        """The tries that have ended, left ones too, and those past their deadline; waits when none has ended yet.

        Raises:
            Fenced: too many threads hang.
        """
        found: list[Ended] = []
        try:
            ended = self._ends.get(timeout=wait) if wait > 0 else self._ends.get_nowait()
            while True:
                number, error = ended
                if number in self._under_way:
                    found.append(Ended(self._under_way.pop(number)[0], error))
                else:
                    found.append(Ended(self._left.pop(number)[0], error, is_left=True))
                ended = self._ends.get_nowait()
        except Empty:
            return found + self._overdue()

    def _overdue(self) -> list[Ended]:
        now = self._clock()
        late = [number for number, (_, deadline) in self._under_way.items() if now >= deadline]
        for number in late:
            self._left[number] = (self._under_way.pop(number)[0], now + self._reaction.timeout)
        if len(self._left) > self._most_left:
            raise Fenced(
                f"reaction {self._reaction.name}: {len(self._left)} tries hang beyond their {self._reaction.timeout:g} "
                f"s; this process ends. Give what act() waits for a deadline of its own"
            )
        why = f"no end within {self._reaction.timeout:g} s"
        return [Ended(self._left[number][0], TimeoutError(why)) for number in late]

    def _run(self, number: int, pending: PendingDelivery) -> None:
        error: BaseException | None = None
        began, given = clock(), pending.delivery
        about = {"messaging.message.id": given.id, "messaging.message.conversation_id": given.correlation_id}
        with ACT.span(self._reaction.name, about, parent=given.traceparent) as span:
            try:
                self._reaction.call(pending.event, pending.next_delivery())
            except BaseException as failure:  # noqa: BLE001  # SystemExit too: the event is not done, whatever was raised
                error = failure
                span.fail(type(error).__name__)
        failed = {"error.type": type(error).__name__} if error is not None else {}
        measured = {**member("reaction", self._reaction.name), "messaging.operation.name": "act", **failed}
        ATTEMPT_SECONDS.record(clock() - began, measured)
        self._ends.put((number, error))


DEATHS = 3
"""How many processes an event may kill before it is parked."""
CLEAN, _WORKING = "", "w"
_CAUTIOUS_FOR = 20_000
_MOST_NOTED = 64
_MOST_BYTES = 3500
_FRAME = len('{"deaths":{},"at":[]}')


class PoisonPillTracker:
    """Tracks poison pills: deaths by partition, stored in the offset metadata for the group's next member.

    A partition that was not handed over in order is *cautious*: events that begin there are noted before. An event
    noted when a process died is suspect: it is tried alone, so that a death then is its own. A try that ends, in any
    way, clears it.

    A broker refuses long notes (`offset.metadata.max.bytes` is 4,096). Deliveries under way always fit, with their
    deaths; of the rest the highest counts stay, then the lowest offsets, and what is left out counts as innocent.
    """

    def __init__(self) -> None:
        self._deaths: dict[PartitionId, dict[int, int]] = {}
        self._cautious: dict[PartitionId, int] = {}

    def hold(self, place: PartitionId, left: str) -> None:
        """Takes a partition with the metadata left in its offset; text of another format counts as left in order."""
        deaths, at = _read(left)
        self._deaths[place] = {offset: deaths.get(offset, 0) + (offset in at) for offset in {*deaths, *at}}
        if left == _WORKING or left.startswith("{"):
            self._cautious[place] = _CAUTIOUS_FOR

    def drop(self, places: Iterable[PartitionId]) -> None:
        """Drops partitions that are assigned to another member."""
        for place in places:
            self._deaths.pop(place, None)
            self._cautious.pop(place, None)

    def took(self, place: PartitionId) -> None:
        """Counts an event that was read; after a great many the suspect one would have come again."""
        if place in self._cautious:
            self._cautious[place] -= 1
            if self._cautious[place] <= 0 and not self._deaths.get(place):
                del self._cautious[place]

    def room(self, under_way: int) -> int:
        """How many more may start: a note is short, and must name every delivery under way."""
        return _MOST_NOTED - under_way if self._cautious else _CAUTIOUS_FOR

    def deaths(self, pending: PendingDelivery) -> int:
        """How many processes in a row have died while this delivery was under way."""
        return self._deaths.get(pending.place, {}).get(pending.record.offset, 0)

    def cleared(self, pending: PendingDelivery) -> None:
        """Clears an event: all its tries have ended, and the process lives."""
        self._deaths.get(pending.place, {}).pop(pending.record.offset, None)

    def note(self, place: PartitionId, offset: int, under_way: Collection[int], hanging: Collection[int] = ()) -> str:
        """The metadata to commit with an offset while deliveries are under way.

        Args:
            under_way: the offsets of the deliveries being tried there.
            hanging: the offsets of deliveries given up there, whose threads have not ended.
        """
        return self._encoded(place, offset, under_way, hanging) if place in self._cautious else _WORKING

    def handoff_metadata(self, place: PartitionId, offset: int) -> str:
        """The metadata to commit when the partition is handed over in order: deliveries under way count as harmless."""
        note = self._encoded(place, offset, (), ())
        return note if '"deaths"' in note else CLEAN

    def _encoded(self, place: PartitionId, offset: int, under_way: Collection[int], hanging: Collection[int]) -> str:
        known = {one: count for one, count in self._deaths.get(place, {}).items() if one >= offset}
        at = {one for one in (*under_way, *hanging) if one >= offset}

        def rank(one: int) -> tuple[bool, int, int]:
            return one not in under_way, -known.get(one, 0) - (one in at), one

        kept: list[int] = []
        room = _MOST_BYTES - _FRAME
        for one in sorted({*known, *at}, key=rank):
            room -= len(f'"{one}":{known[one]},') if one in known else 0
            room -= len(f"{one},") if one in at else 0
            if room < 0:
                break
            kept.append(one)
        kept.sort()
        deaths = {str(one): known[one] for one in kept if one in known}
        note = {**({"deaths": deaths} if deaths else {}), "at": [one for one in kept if one in at]}
        return json.dumps(note, separators=(",", ":"))


def _read(left: str) -> tuple[dict[int, int], set[int]]:
    """The deaths that were known before, and the offsets that were under way."""
    try:
        note: Any = json.loads(left)
        return {int(offset): int(count) for offset, count in note.get("deaths", {}).items()}, set(map(int, note["at"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}, set()
