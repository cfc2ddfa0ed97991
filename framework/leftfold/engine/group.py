"""Followers that read the log together, at one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from leftfold.engine.decoded import Decoded, EventDecoder, whole_decisions
from leftfold.engine.follower import Follower
from leftfold.ports import LogReader, ViewStore
from leftfold.position import Position

__all__ = ["Group"]

IDLE_SECONDS = 0.1
"""How often marks move when only transaction markers went by."""
QUICK_SECONDS = 0.2


class Group:
    """One reader of the log and the followers it feeds, all of which have seen everything up to `position`.

    The next batch is read and decoded while the store works on the flushes of the one before.

    Args:
        growth: how many times as large batches may get while there are more events waiting and a step is quick.
    """

    def __init__(
        self, open_log: Callable[[], LogReader], followers: Sequence[Follower], store: ViewStore, growth: int = 8
    ) -> None:
        self._open, self.log, self._store = open_log, open_log(), store
        self.followers: list[Follower] = []
        self._rest: list[Decoded] = []
        self._flushed, self._flying, self._at = Position(), False, 0.0
        self._limit, self._growth = 0, growth
        self.seek(followers)

    def seek(self, followers: Sequence[Follower]) -> None:
        """Starts over with these followers at the least of their positions."""
        self.followers = list(followers)
        self._decoder = EventDecoder([f.view for f in self.followers])
        self._rest, self._flying = [], False
        start = Position()
        for follower in self.followers:
            start = _least(start, follower.position())
        self._flushed = self._target = start
        self.log.seek(start)

    def position(self) -> Position:
        """Everything below is folded and flushed by every follower."""
        return self._flushed

    def step(self, batch: int, timeout: float) -> tuple[int, list[Follower]]:
        """Reads and folds one batch; returns how many events, and the followers that are out of step and left.

        What it sends to the store lands at the next step, or at `land`.

        Args:
            batch: how many events at first.
        """
        began = time.monotonic()
        self._limit = max(batch, min(self._limit, batch * self._growth))
        records = self.log.poll(self._limit, 0.0 if self._flying else timeout)
        full = len(records) >= self._limit
        decoded = self._rest + [self._decoder.decode(r) for r in records]
        left = self.land()
        whole, self._rest = whole_decisions(decoded)
        reached = self._reached()
        now = time.monotonic()
        if not whole and (reached == self._flushed or now - self._at < IDLE_SECONDS):
            return 0, left
        self._at = now
        try:
            self._send(whole, reached)
        except BaseException:
            # The records are out of the log but not in the store: nobody may go on behind them.
            self.seek(self.followers)
            raise
        self._limit = self._limit * 2 if full and time.monotonic() - began < QUICK_SECONDS else self._limit // 2
        return len(whole), left

    def land(self) -> list[Follower]:
        """Waits for what is on its way to the store; returns the followers that are out of step and left."""
        if not self._flying:
            return []
        self._flying = False
        try:
            left = [follower for follower in self.followers if not follower.landed()]
        except BaseException:
            self.seek(self.followers)
            raise
        self.followers = [follower for follower in self.followers if follower not in left]
        self._flushed = self._target
        return left

    def _send(self, whole: list[Decoded], reached: Position) -> None:
        going = [follower for follower in self.followers if not follower.stopped]
        asked = [(follower.generation, missing) for follower in going if (missing := follower.look(whole))]
        found = iter(self._store.read_all(asked) if asked else ())
        for follower in going:
            follower.begin(next(found) if follower.missing else None, reached)
        self._target, self._flying = reached, True

    def _reached(self) -> Position:
        """Where the log goes on, or the first record held back where a decision is not whole yet."""
        position = self.log.position()
        if not self._rest:
            return position
        offsets = {t: dict(ps) for t, ps in position.offsets.items()}
        for record in reversed(self._rest):
            offsets[record.topic][record.partition] = record.offset
        return Position(offsets)

    def close(self) -> None:
        """Closes the reader."""
        self.log.close()


def _least(one: Position, other: Position) -> Position:
    """Per partition the lesser where both name it, else the one that does."""
    offsets = {t: dict(ps) for t, ps in one.offsets.items()}
    for topic, partitions in other.offsets.items():
        mine = offsets.setdefault(topic, {})
        for partition, offset in partitions.items():
            mine[partition] = min(mine.get(partition, offset), offset)
    return Position(offsets)
