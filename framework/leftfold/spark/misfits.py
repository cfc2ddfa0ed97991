"""Events that tables pass over, since a value fits no column: an amount of 400,000 digits, a time before the year 1."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

__all__ = ["Misfits"]

_KNOWN = 1000
_NAMED = 5


class Misfits:
    """Tells the driver which events its tasks passed over; an event that is read again counts once."""

    def __init__(self, spark: SparkSession) -> None:
        context: SparkContext = spark.sparkContext
        self._found = context.accumulator({}, _Places())

    def add(self, place: str, field: str) -> None:
        """Notes an event and the field that does not fit; tasks call this."""
        self._found.add({place: field})

    @property
    def found(self) -> Mapping[str, str]:
        """The places of events and their fields, as far as tasks have ended; 1,000 at most."""
        return dict(self._found.value)

    def __str__(self) -> str:
        """All of them in a line, '' when there are none."""
        found = sorted(self.found.items())
        if not found:
            return ""
        named = ", ".join(f"{place} ({field})" for place, field in found[:_NAMED])
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        count = f"{len(found):,}{' or more' if len(found) == _KNOWN else ''} {'event' if len(found) == 1 else 'events'}"
        return f"{count} passed over, since a value does not fit its column: {named}{more}"


class _Places(AccumulatorParam[dict[str, str]]):
    def zero(self, value: dict[str, str]) -> dict[str, str]:
        return {}

    def addInPlace(self, value1: dict[str, str], value2: dict[str, str]) -> dict[str, str]:  # noqa: N802  # pyspark's
        for place, field in value2.items():
            if len(value1) < _KNOWN:
                value1[place] = field
        return value1
