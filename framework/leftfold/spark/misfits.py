"""What is passed over because of a value: events that fit no table, such as 400,000 digits, and rows without a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

__all__ = ["Misfits"]

_KNOWN = 1000
_NAMED = 5
_SHOWN = 200
_UNNAMED = ""


class Misfits:
    """Tells the driver what its tasks passed over; what is read again counts once."""

    def __init__(self, spark: SparkSession) -> None:
        context: SparkContext = spark.sparkContext
        self._found = context.accumulator({}, _Places())

    def add(self, place: str, field: str) -> None:
        """Notes an event and the field that does not fit; tasks call this."""
        self._found.add({place: field})

    def unnamed(self, row: Any) -> None:
        """Notes a row whose key is empty; tasks call this."""
        self._found.add({f"{row!r:.{_SHOWN}}": _UNNAMED})

    @property
    def found(self) -> Mapping[str, str]:
        """The places of events and their fields, and rows without a key, as far as tasks have ended; 1,000 at most."""
        return dict(self._found.value)

    def __str__(self) -> str:
        """All of them in a line, '' when there are none."""
        found = sorted(self.found.items())
        events = [f"{place} ({field})" for place, field in found if field != _UNNAMED]
        rows = [row for row, field in found if field == _UNNAMED]
        many = " or more" if len(found) == _KNOWN else ""
        sentences = (
            _sentence(events, f"{many} event", "a value does not fit its column"),
            _sentence(rows, f"{many} row", "a row key may not be empty"),
        )
        return "; ".join(filter(None, sentences))


def _sentence(found: Sequence[str], what: str, why: str) -> str:
    if not found:
        return ""
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    count = f"{len(found):,}{what}{'' if len(found) == 1 else 's'}"
    return f"{count} passed over, since {why}: {', '.join(found[:_NAMED])}{more}"


class _Places(AccumulatorParam[dict[str, str]]):
    def zero(self, value: dict[str, str]) -> dict[str, str]:
        return {}

    def addInPlace(self, value1: dict[str, str], value2: dict[str, str]) -> dict[str, str]:  # noqa: N802  # pyspark's
        for place, field in value2.items():
            if len(value1) < _KNOWN:
                value1[place] = field
        return value1
