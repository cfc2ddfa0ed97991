"""Which rows a batch of events touches, and what each of them is to fold, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

from leftfold.engine.decoded import Decoded
from leftfold.engine.places import bucket_of
from leftfold.flush import Generation, Mark
from leftfold.view import View

__all__ = ["NO_KEY", "Place", "Touches", "Touching"]

Place: TypeAlias = tuple[int, str]
"""A bucket and an encoded row key in it."""
Touches: TypeAlias = dict[Place, list[tuple[Any, Decoded]]]
NO_KEY = "\0"


class Touching:
    """Sorts records by the rows of one generation, by bucket and encoded key.

    A record that cannot be read, or whose rows cannot be told, becomes an exception in the place of the item.
    """

    def __init__(self, view: View[Any, Any], generation: Generation) -> None:
        self._view, self._generation = view, generation
        self._names = {f"{c.__leftfold__.category}.{c.__leftfold__.name}" for c in view.events}

    def of(self, records: Iterable[Decoded], marks: Mapping[int, Mark]) -> tuple[Touches, str]:
        """What each row is to fold that its bucket has not folded yet, and why the view must stop ('' = it goes on).

        Args:
            marks: of the buckets that somebody folds; what concerns others is left out.
        """
        touched: Touches = {}
        done = _Done(marks)
        for record in records:
            if not self._is_wanted(record):
                continue
            try:
                pairs = self._pairs(record)
            except Exception as error:  # noqa: BLE001  # user code and broken records alike
                if not self._generation.stream_keyed:
                    return touched, f"{record.topic}[{record.partition}]@{record.offset}: {error}"
                pairs = ((self._view.keys.encode(record.key or NO_KEY), error),)
            for key, item in pairs:
                place = bucket_of(self._generation, key, record.partition), key
                if record.offset < done[place[0], record.topic, record.partition]:
                    continue
                if place in touched:
                    touched[place].append((item, record))
                else:
                    touched[place] = [(item, record)]
        return touched, ""

    def _is_wanted(self, record: Decoded) -> bool:
        if record.topic not in self._generation.topics:
            return False
        if record.error is None:
            return isinstance(record.event, self._view.events)
        return not record.name or record.name in self._names

    def _pairs(self, record: Decoded) -> Sequence[tuple[str, Any]]:
        if record.error is not None:
            raise record.error
        return tuple(self._view.touches(record.event, record.key))  # type: ignore[arg-type]  # an event that is wanted


class _Done(dict[tuple[int, str, int], float]):
    """The offset from which on a bucket folds a partition's records."""

    def __init__(self, marks: Mapping[int, Mark]) -> None:
        super().__init__()
        self._marks = marks

    def __missing__(self, place: tuple[int, str, int]) -> float:
        bucket, topic, partition = place
        mark = self._marks.get(bucket)
        found = self[place] = inf if mark is None else mark.position.next_offset(topic, partition)
        return found
