"""Says what time it is at the sources of a process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from faust.types import TP

from leftfold.codec import header
from leftfold.engine.log_time import SILENCE, SourceTime, TimeMark
from leftfold.faust.sending import Sender
from leftfold.moments import moment_at, moment_in
from leftfold.ports import RawRecord

__all__ = ["Clock"]


class Clock:
    """Keeps the time of each source that this router reads, and writes it to a topic at each tick."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self._sender, self._topic = sender, topic
        self._since: dict[TP, datetime] = {}
        self._last: dict[TP, SourceTime] = {}
        self._ahead: dict[TP, dict[int, SourceTime]] = {}

    def routed(self, consumer: Any, record: RawRecord) -> None:
        """An event is routed, or concerns nobody; of a partition that went to another router it tells nothing."""
        tp = TP(record.topic, record.partition)
        if consumer.progress.done(tp, record.offset) and (time := moment_in(header(record.headers, "ce_time"))):
            self._ahead.setdefault(tp, {})[record.offset] = SourceTime(time, moment_at(record.time))

    async def tick(self, consumer: Any) -> None:
        """Writes the time of every source that is assigned now."""
        sources = {tp for tp in consumer.assignment() if tp in consumer.progress.position}
        now = datetime.now(UTC)
        if sources - self._since.keys():
            await self._sender.draw_line()
        self._since = {tp: self._since.get(tp, now) for tp in sources}
        for known in (self._last, self._ahead):
            for tp in known.keys() - sources:
                del known[tp]
        if not sources:
            return
        ends = await consumer.ends(sources)
        times = {f"{tp.topic}/{tp.partition}": self._time(consumer, tp, ends[tp], now) for tp in sources}
        await self._sender.tell(self._topic, TimeMark(times, dict(self._sender.ends)).encode())

    def _time(self, consumer: Any, tp: TP, end: int, now: datetime) -> SourceTime:
        frontier, ahead = consumer.progress.frontier(tp) or 0, self._ahead.get(tp, {})
        routed = [offset for offset in ahead if offset < frontier]
        if routed:
            self._last[tp] = ahead[max(routed)]
            self._ahead[tp] = {offset: at for offset, at in ahead.items() if offset >= frontier}
        last = self._last.get(tp)
        if not consumer.progress.is_through(tp, end):
            return last or SourceTime()
        if last is not None:
            return SourceTime(last.time, last.appended, now)
        # What came last came to another router, which alone knows how late it was: after a minute that is the past.
        return SourceTime(end=now) if not end or now - self._since[tp] >= SILENCE else SourceTime()
