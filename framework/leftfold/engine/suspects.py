"""Events that may have killed a process: what it leaves behind about them, and what a successor makes of that."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from leftfold.engine.pending import Pending, Place

__all__ = ["CLEAN", "DEATHS", "Suspects"]

DEATHS = 3
"""How many processes an event may kill."""
CLEAN, _WORKING = "", "w"
_WARY_FOR = 20_000
_MOST_NOTED = 64
_MOST_BYTES = 3500
_FRAME = len('{"deaths":{},"at":[]}')


class Suspects:
    """Deaths by partition, kept in the metadata of its offset, which a group's next member finds there.

    A partition that was not left in order is *wary*: what is begun there is noted before. What was noted when a process
    died is suspect: it is tried alone, so that a death then is its own. A try that ends, however it ends, clears it.

    A broker refuses long notes (`offset.metadata.max.bytes` is 4,096). What is under way always fits, with its deaths;
    of the rest the highest counts stay, then the lowest offsets, and what is left out counts as innocent.
    """

    def __init__(self) -> None:
        self._deaths: dict[Place, dict[int, int]] = {}
        self._wary: dict[Place, int] = {}

    def hold(self, place: Place, left: str) -> None:
        """A partition that was left so; what is no note of ours counts as left in order."""
        deaths, at = _read(left)
        self._deaths[place] = {offset: deaths.get(offset, 0) + (offset in at) for offset in {*deaths, *at}}
        if left == _WORKING or left.startswith("{"):
            self._wary[place] = _WARY_FOR

    def drop(self, places: Iterable[Place]) -> None:
        """These are somebody else's now."""
        for place in places:
            self._deaths.pop(place, None)
            self._wary.pop(place, None)

    def took(self, place: Place) -> None:
        """An event of the partition was read; behind a great many the one that killed would have come again."""
        if place in self._wary:
            self._wary[place] -= 1
            if self._wary[place] <= 0 and not self._deaths.get(place):
                del self._wary[place]

    def room(self, under_way: int) -> int:
        """How many more may begin: a note is short, and says all that is under way."""
        return _MOST_NOTED - under_way if self._wary else _WARY_FOR

    def deaths(self, pending: Pending) -> int:
        """How many processes in a row have died while it was under way."""
        return self._deaths.get(pending.place, {}).get(pending.record.offset, 0)

    def cleared(self, pending: Pending) -> None:
        """No try of it goes on, and the process lives."""
        self._deaths.get(pending.place, {}).pop(pending.record.offset, None)

    def note(self, place: Place, offset: int, under_way: Collection[int], hanging: Collection[int] = ()) -> str:
        """What to leave behind at an offset while there is work.

        Args:
            under_way: the offsets of what is being tried there.
            hanging: of what was given up there, whose threads have not ended.
        """
        return self._told(place, offset, under_way, hanging) if place in self._wary else _WORKING

    def farewell(self, place: Place, offset: int) -> str:
        """What to leave behind when the partition is left in order: what is under way has killed nobody."""
        told = self._told(place, offset, (), ())
        return told if '"deaths"' in told else CLEAN

    def _told(self, place: Place, offset: int, under_way: Collection[int], hanging: Collection[int]) -> str:
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
        told = {**({"deaths": deaths} if deaths else {}), "at": [one for one in kept if one in at]}
        return json.dumps(told, separators=(",", ":"))


def _read(left: str) -> tuple[dict[int, int], set[int]]:
    """The deaths that were known before, and what was under way."""
    try:
        told: Any = json.loads(left)
        return {int(offset): int(count) for offset, count in told.get("deaths", {}).items()}, set(map(int, told["at"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}, set()
