"""Says what time it is at the sources of a process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from faust.types import TP

from leftfold.codec import header
from leftfold.engine.log_time import SourceTime, TimeMark
from leftfold.faust.sending import Sender
from leftfold.ports import RawRecord

__all__ = ["Clock"]


class Clock:
    """Keeps the time of each source that this router reads, and writes it to a topic at each tick."""

    def __init__(self, sender: Sender, topic: str) -> None:
        self._sender, self._topic = sender, topic
        self._last: dict[TP, tuple[datetime, datetime]] = {}
        self._known: set[TP] = set()

    def routed(self, consumer: Any, record: RawRecord) -> None:
        """An event is routed, or concerns nobody."""
        tp = TP(record.topic, record.partition)
        consumer.progress.done(tp, record.offset)
        if time := header(record.headers, "ce_time"):
            appended = datetime.fromtimestamp(record.time / 1000, UTC)
            self._last[tp] = datetime.fromisoformat(time.decode()), appended

    async def tick(self, consumer: Any) -> None:
        """Writes the time of every source that is assigned now."""
        sources = {tp for tp in consumer.assignment() if tp in consumer.progress.position}
        if not sources:
            return
        if sources - self._known:
            await self._sender.look()
        self._known = sources
        now, ends = datetime.now(UTC), await consumer.ends(sources)
        times = {}
        for tp in sources:
            time, appended = self._last.get(tp, (None, None))
            end = now if consumer.progress.is_through(tp, ends[tp]) else None
            times[f"{tp.topic}/{tp.partition}"] = SourceTime(time, appended, end)
        await self._sender.tell(self._topic, TimeMark(times, dict(self._sender.ends)).encode())
