"""A subscription: one log reader that feeds several projection writers from one position."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from leftfold.engine.views.decoding import Decoded, EventDecoder, whole_decisions
from leftfold.engine.views.generations import age_key
from leftfold.engine.views.parking import RowEncodingError
from leftfold.engine.views.projection_spans import ProjectionSpans
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import LeftfoldError, LogGap
from leftfold.model.position import Position
from leftfold.ports.protocols import LogReader, ViewStore

__all__ = ["SharedSubscription"]

T = TypeVar("T")

IDLE_SECONDS = 0.1
"""Seconds between moves of the checkpoints when only transaction markers were read."""
CONFIRM_SECONDS = 1.0
"""Seconds between checks that the last flush is still in the store, while there is nothing to flush."""
FLUSH_SECONDS = 1.0
"""Seconds for which a projector folds events before it flushes, while more events are waiting."""
FLUSH_ROWS = 25_000
"""About how many rows a projector sends at once; the store serves no other client meanwhile."""
FLUSH_EVENTS = 128
"""How many events the first flush after an idle time holds. While more wait, each next one holds twice as many."""
_AT_ONCE = 250


class SharedSubscription:
    """One log reader and the projection writers it feeds, all of which have seen every event before `position`.

    `before` was the position before the last flush.

    The next events are read and folded while the store works on earlier flushes. After an idle time the flushes grow
    step by step, so that the first events of a burst do not wait for the last.

    Args:
        growth: how many batches are folded into one flush, at most, while more events are waiting.
    """

    def __init__(
        self, open_log: Callable[[], LogReader], writers: Sequence[ProjectionWriter], store: ViewStore, growth: int = 64
    ) -> None:
        self.log, self._store = open_log(), store
        self._spans = ProjectionSpans()
        self.writers: list[ProjectionWriter] = []
        self._early: list[ProjectionWriter] = []
        self._left: list[ProjectionWriter] = []
        self._rest: list[Decoded] = []
        self.before, self._flushed, self._flying, self._at = Position(), Position(), False, 0.0
        self._growth, self._folded, self._again, self._lost = growth, 0, False, False
        self._part = FLUSH_EVENTS
        self._confirmed = time.monotonic()
        with suppress(LogGap):  # the first step raises it
            self.seek(writers)

    def seek(self, writers: Sequence[ProjectionWriter]) -> None:
        """Restarts with these projection writers at the least of their positions.

        The newest generation of a view comes first: the next to go live is never behind the live one.
        """
        self._lost = True
        self.writers = sorted(writers, key=lambda writer: age_key(writer.generation), reverse=True)
        for writer in self.writers:
            writer.rewind()
        self._decoder = EventDecoder([f.view for f in self.writers])
        self._spans.restart(writer.view.name for writer in self.writers)
        self._rest, self._flying, self._folded = [], False, 0
        start = Position()
        for writer in self.writers:
            start = _least(start, writer.position())
        self.before = self._flushed = self._target = start
        self.log.seek(start)
        self._lost = False

    def position(self) -> Position:
        """The position before which every projection writer has folded and flushed all events."""
        return self._flushed

    def step(self, batch: int, timeout: float, share: float = 1.0) -> tuple[int, list[ProjectionWriter]]:
        """Reads, folds and flushes new events; returns their number and the projection writers that left out of step.

        What it sends to the store lands at the next step, or at `land`.

        Args:
            batch: how many events are read at a time.
            share: of the time and the rows that a step may take, where several subscriptions take turns.
        """
        if self._lost:
            self.seek(self.writers)
        self._fold(batch, timeout, share)
        self._land()
        reached, now, count = self._reached(), time.monotonic(), self._folded
        if not count and (reached == self._flushed or now - self._at < IDLE_SECONDS):
            self._leave_unconfirmed(now)
            return 0, self._take_left()
        self._at = self._confirmed = now
        self._reread_if_it_fails(self._send, reached)
        self._spans.folded(count, (writer.view.name for writer in self.writers))
        self._folded = 0
        if self._again:
            self._land()
            self.seek(self.writers)
        return count, self._take_left()

    def _fold(self, batch: int, timeout: float, share: float) -> None:
        """Folds until no more events are there, or until there is enough for a flush."""
        until = time.monotonic() + FLUSH_SECONDS * share
        read, most = 0, self._growth * batch
        self._part = min(self._part, most)
        while read < (self._part if self._folded else most):  # a decision may have more events than a part
            limit = min(batch, self._part - read) if read < self._part else batch
            full = self._read(limit, 0.0 if self._flying or self._folded else timeout)
            read += limit
            whole, self._rest = whole_decisions(self._rest)
            if whole:
                self._reread_if_it_fails(self._take, whole)
                self._folded += len(whole)
            if not full:
                self._part = FLUSH_EVENTS
                return
            rows = sum(writer.unsent() for writer in self.writers)
            if rows >= FLUSH_ROWS * share or time.monotonic() >= until:
                return
        self._part *= 2

    def _take(self, whole: list[Decoded]) -> None:
        active = [writer for writer in self.writers if not writer.stopped]
        asked = [(writer, missing) for writer in active if (missing := writer.look(whole))]
        if asked:
            found = self._store.read_all([(writer.generation, missing) for writer, missing in asked])
            for (writer, _), read in zip(asked, found, strict=True):
                writer.enter(read)

    def _reread_if_it_fails(self, work: Callable[[T], None], what: T) -> None:
        """Runs a step on records that are out of the log and not in the store yet. If it fails, they are read again.

        No writer may continue behind records that were lost.
        """
        try:
            work(what)
        except Exception:
            with suppress(LeftfoldError):
                self._land()
            self.seek(self.writers)
            raise
        except BaseException:
            self.seek(self.writers)
            raise

    def _read(self, limit: int, timeout: float) -> bool:
        """Reads and decodes until the limit or the end of the log; returns whether the limit was reached.

        It reads a few hundred records at a time: the client's messages are then freed before they leave the CPU cache.
        """
        read = 0
        while read < limit:
            records = self.log.poll(min(_AT_ONCE, limit - read), 0.0 if read else timeout)
            if not records:
                return False
            self._spans.read(records, is_first=not read and not self._folded)
            self._rest += self._decoder.decode_all(records)
            read += len(records)
        return True

    def land(self) -> list[ProjectionWriter]:
        """Waits for the pending flush; returns the projection writers that left out of step."""
        self._land()
        return self._take_left()

    def _take_left(self) -> list[ProjectionWriter]:
        """The writers that left and that no caller has received yet."""
        left, self._left = self._left, []
        return left

    def _land(self) -> None:
        if not self._flying:
            return
        self._flying = False
        try:
            left = [f for f in self.writers if not self._has_landed(f) or f in self._early]
        except BaseException:
            self.seek(self.writers)
            raise
        self._leave(left)
        self._spans.end("OutOfStep" if left else "")
        self.before, self._flushed = self._flushed, self._target

    def _has_landed(self, writer: ProjectionWriter) -> bool:
        is_written = writer.landed()
        self._spans.landed(writer, is_written=is_written)
        return is_written

    def _leave(self, left: Sequence[ProjectionWriter]) -> None:
        self.writers = [writer for writer in self.writers if writer not in left]
        self._left += left

    def _send(self, reached: Position) -> None:
        self._early, self._again = [], False
        self._target, self._flying = reached, True
        active = [writer for writer in self.writers if not writer.stopped]
        unsent: list[ProjectionWriter] = []
        for number, writer in enumerate(active):
            # The newer generation of a view lands first: the live one must not be ahead of the next.
            newer = [f for f in active[:number] if f.view is writer.view]
            self._early += [f for f in newer if not self._has_landed(f)]
            if any(f in unsent for f in newer):
                continue
            try:
                with self._spans.flush(writer):
                    writer.begin(reached)
            except RowEncodingError:
                unsent.append(writer)
        self._again = bool(unsent)

    def _leave_unconfirmed(self, now: float) -> None:
        """Removes projection writers whose checkpoints are not the ones they wrote last.

        A writer that flushes detects this by flushing. A store that went back in time while no events come would
        otherwise keep its older rows until the next event.
        """
        if now - self._confirmed >= CONFIRM_SECONDS:
            self._confirmed = now
            self._leave([f for f in self.writers if not f.stopped and not f.is_confirmed()])

    def _reached(self) -> Position:
        """The log's position, or the first record held back where a decision is not whole yet."""
        position = self.log.position()
        if not self._rest:
            return position
        held_back = {(record.topic, record.partition): record.offset for record in reversed(self._rest)}
        return Position.of({**position.by_partition(), **held_back})

    def close(self) -> None:
        """Closes the reader."""
        self.log.close()


def _least(one: Position, other: Position) -> Position:
    """Per partition the lesser offset where both positions name it, else the one given."""
    mine = one.by_partition()
    return Position.of({**mine, **{p: min(offset, mine.get(p, offset)) for p, offset in other.by_partition().items()}})
