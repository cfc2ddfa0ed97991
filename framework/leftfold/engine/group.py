"""Followers that read the log together, at one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from leftfold.engine.decoded import Decoded, EventDecoder, whole_decisions
from leftfold.engine.follower import Follower
from leftfold.engine.generations import birth
from leftfold.ports import LogReader
from leftfold.position import Position

__all__ = ["Group"]

IDLE_SECONDS = 0.1
"""How often marks move when only transaction markers went by."""
CONFIRM_SECONDS = 1.0
"""How often a group without anything to flush sees whether what it flushed is still there."""


class Group:
    """One reader of the log and the followers it feeds, all of which have seen everything up to `position`."""

    def __init__(self, open_log: Callable[[], LogReader], followers: Sequence[Follower]) -> None:
        self._open, self.log = open_log, open_log()
        self.followers: list[Follower] = []
        self._rest: list[Decoded] = []
        self._flushed, self._at = Position(), 0.0
        self._confirmed = time.monotonic()
        self.seek(followers)

    def seek(self, followers: Sequence[Follower]) -> None:
        """Starts over with these followers at the least of their positions.

        Of one view the newest generation comes first: the next to go live is never behind the one that is live.
        """
        self.followers = sorted(followers, key=lambda follower: birth(follower.generation), reverse=True)
        self._decoder = EventDecoder([f.view for f in self.followers])
        self._rest = []
        start = Position()
        for follower in self.followers:
            start = _least(start, follower.position())
        self._flushed = start
        self.log.seek(start)

    def position(self) -> Position:
        """Everything below is folded and flushed by every follower."""
        return self._flushed

    def step(self, limit: int, timeout: float) -> tuple[int, list[Follower]]:
        """Reads and folds one batch; returns how many events, and the followers that are out of step and left."""
        records = self._rest + [self._decoder.decode(r) for r in self.log.poll(limit, timeout)]
        whole, self._rest = whole_decisions(records)
        reached = self._reached()
        now = time.monotonic()
        if not whole and (reached == self._flushed or now - self._at < IDLE_SECONDS):
            return 0, self._unconfirmed(now)
        self._at = self._confirmed = now
        try:
            left = [f for f in self.followers if not f.stopped and not f.fold(whole, reached)]
        except BaseException:
            # The records are out of the log but not in the store: nobody may go on behind them.
            self.seek(self.followers)
            raise
        self.followers = [f for f in self.followers if f not in left]
        self._flushed = reached
        return len(whole), left

    def _unconfirmed(self, now: float) -> list[Follower]:
        """The followers whose marks are not those they wrote any more; they leave.

        Who flushes finds that out by flushing. A store that went back in time while nothing happens would otherwise
        keep its older rows until the next event.
        """
        if now - self._confirmed < CONFIRM_SECONDS:
            return []
        self._confirmed = now
        left = [f for f in self.followers if not f.stopped and not f.is_confirmed()]
        self.followers = [f for f in self.followers if f not in left]
        return left

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
