"""Writes the view rows of a stream, and shows them to readers once they are complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import aiokafka
from faust.types import TP

from leftfold.engine.log_gaps import log_gap, unreachable
from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.errors import Fenced
from leftfold.model.position import Position

__all__ = ["TableRows"]

_LOOK_SECONDS = 2.0


class TableRows:
    """The view rows of a stream, written only by this process until it is closed.

    Raises:
        InfrastructureError: another process writes one of the views. Fenced: another process took one over just now.
    """

    def __init__(self, rows: Sequence[ExternalRows[Any, Any]]) -> None:
        self._rows, self._stack = tuple(rows), ExitStack()
        self._ends = Position()
        self._passed_live = False
        self._looked = 0.0
        try:
            for one in self._rows:
                self._stack.enter_context(one.alone())
            self.ids = [one.open().id for one in self._rows]
        except BaseException:
            self.close()
            raise

    def __bool__(self) -> bool:
        return bool(self._rows)

    def close(self) -> None:
        """Releases the views for another process."""
        self._stack.close()

    async def check(self, dialect: Mapping[str, Any], group: str) -> None:
        """Compares the group's committed offsets with the rows, and reads the end offsets of the log.

        Raises:
            Fenced: rows lack committed events, since Redis has lost data; the next run starts from the beginning.
            LogGap: the topic was trimmed past the next offset, and no archive is read here.
        """
        client = aiokafka.AIOKafkaConsumer(**dialect, group_id=group, enable_auto_commit=False)
        await client.start()
        try:
            topics = {topic: count for rows in self._rows for topic, count in rows.topics.items()}
            places = [aiokafka.TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
            ends = await client.end_offsets(places)
            committed = {place: await client.committed(place) or 0 for place in places}
            starts = await client.beginning_offsets(places)
        finally:
            await client.stop()
        self._ends = _position(ends)
        if missing := unreachable(_position(starts), _position(committed)):
            raise log_gap(*missing[0])
        for rows in self._rows:
            if not rows.position().covers(_position(committed).only(rows.topics)):
                rows.discard()
                raise Fenced(
                    f"view {rows.view.name} lacks events that are committed: its store has lost data; the view starts "
                    f"from the beginning"
                )

    async def write(self, position: Position, shown: Callable[[str], None]) -> None:
        """Writes the changed rows, which include all events before a position; `shown` is called for new live views.

        A view that is ahead of the position waits: after a start, or while another view is built from the first event,
        its readers would see old rows.

        Raises:
            Fenced: another process has taken over, or a rebuild has made another generation live.
        """
        for rows in self._rows:
            if self._is_behind(rows, position):
                continue
            taken = rows.take()
            if any(taken) or not rows.position().covers(position.only(rows.topics)):
                await asyncio.to_thread(rows.write, taken, position)
            if not rows.is_live and not rows.is_rebuild and self._is_through(rows):
                await asyncio.to_thread(rows.show)
                shown(rows.view.name)
        if time.monotonic() >= self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            for rows in self._rows:
                await asyncio.to_thread(rows.check_current)

    async def has_caught_up(self) -> bool:
        """Whether the rows include all events of the log at the start, and all events in the live views."""
        if not all(map(self._is_through, self._rows)):
            return False
        if not self._passed_live:
            self._passed_live = True
            for rows in self._rows:
                self._ends |= await asyncio.to_thread(rows.seen)
        return all(map(self._is_through, self._rows))

    def stored(self) -> dict[TP, int]:
        """The next offset of each partition of the views' topics, up to which the rows of all views include it."""
        stored: dict[TP, int] = {}
        for rows in self._rows:
            position = rows.position()
            for tp in (TP(topic, p) for topic, count in rows.topics.items() for p in range(count)):
                offset = position.next_offset(*tp)
                stored[tp] = min(offset, stored.get(tp, offset))
        return stored

    def lacking(self, events: Iterable[tuple[TP, int]]) -> list[tuple[TP, int]]:
        """The events that are not in the rows of all views yet, which a restart after them would lose."""
        held = [(rows.topics, rows.position()) for rows in self._rows]
        return [
            (tp, offset)
            for tp, offset in events
            if any(tp.topic in topics and reached.next_offset(*tp) <= offset for topics, reached in held)
        ]

    @staticmethod
    def _is_behind(rows: ExternalRows[Any, Any], position: Position) -> bool:
        return not position.covers(rows.position())

    def _is_through(self, rows: ExternalRows[Any, Any]) -> bool:
        return rows.position().covers(self._ends.only(rows.topics))


def _position(offsets: Mapping[Any, int]) -> Position:
    return Position.of({(place.topic, place.partition): offset for place, offset in offsets.items()})
