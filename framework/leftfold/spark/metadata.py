"""What tables of events say of an event beside its fields: columns whose names begin with `_`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from leftfold.envelope import Recorded

__all__ = ["METADATA_COLUMNS", "metadata_types"]

_TIME = pa.timestamp("us", tz="UTC")


def _type_of(recorded: Recorded[Any]) -> str:
    spec = type(recorded.event).__leftfold__
    return f"{spec.name}.v{spec.version}"


METADATA_COLUMNS: Mapping[str, tuple[pa.DataType, Callable[[Recorded[Any]], Any]]] = {
    "_type": (pa.string(), _type_of),
    "_key": (pa.string(), lambda recorded: recorded.key),
    "_time": (_TIME, lambda recorded: recorded.time),
    "_sequence": (pa.int64(), lambda recorded: recorded.version),
    "_partition": (pa.int32(), lambda recorded: recorded.partition),
    "_offset": (pa.int64(), lambda recorded: recorded.offset),
    "_id": (pa.string(), lambda recorded: recorded.id),
    "_correlation": (pa.string(), lambda recorded: recorded.correlation_id),
    "_causation": (pa.string(), lambda recorded: recorded.causation_id),
}
"""The type of each column, and what it says of an event."""


def metadata_types(names: Iterable[str]) -> dict[str, pa.DataType]:
    """Some of these columns with their types, in the order of the names."""
    return {name: METADATA_COLUMNS[name][0] for name in names}
