"""Whether a live generation is, in every part that readers and writers look at, what some rows would make of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from leftfold.client import Views
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.protocols import ViewStore

__all__ = ["assert_whole"]

_MANY = 100_000
_SOME = {bool: True, Decimal: Decimal(0), str: "m", int: 0}
"""Of each type of an index a value at which to cut it in two."""


def assert_whole(store: ViewStore, view: View[Any, Any], rows: Mapping[Any, Any], ends: Position | None = None) -> None:
    """Rows, their keys and number, index entries, checksum, and the positions of checkpoints if `ends` are given.

    Parked rows are not among `rows`; where there is one it is listed, counted and indexed like any other.
    """
    reader, found = Views(store)[view], dict(Views(store)[view].items())
    parked = reader.describe().parked
    assert {key: row for key, row in found.items() if key not in parked} == rows, view.name
    live = store.registry(view.name).live_of(view.hash)
    assert live is not None, view.name
    checkpoints, encode = store.checkpoints(live), view.keys.encode
    listed = [key for bucket in range(live.buckets) for key in store.keys(live, bucket, "", _MANY)]
    assert sorted(listed) == sorted(map(encode, found)), f"{view.name}: the list of keys"
    assert sum(checkpoint.rows for checkpoint in checkpoints.values()) == len(found), f"{view.name}: the number of rows"
    digests = sum(view.rows.digest(encode(key), view.rows.encode(row)) for key, row in rows.items())
    assert (sum(checkpoint.checksum for checkpoint in checkpoints.values()) - digests) % CHECKSUM_MODULUS == 0, (
        f"{view.name}: checksum"
    )
    _assert_indexed(reader, view, list(found.values()))
    for bucket, checkpoint in checkpoints.items() if ends is not None else ():
        wanted = ends.only(live.topics, bucket if live.stream_keyed else None)  # type: ignore[union-attr]  # as above
        assert checkpoint.position == wanted, (
            f"{view.name}: bucket {bucket} is at {checkpoint.position}, not at {wanted}"
        )


def _assert_indexed(reader: Any, view: View[Any, Any], rows: list[Any]) -> None:
    """Each index has an entry for each row at its value, and none besides."""
    for index, type_ in view.rows.index_types.items():
        middle = _SOME[type_]
        entries = reader.count_between(index, at_least=middle) + reader.count_between(index, below=middle)
        assert entries == len(rows), f"{view.name}: index {index} has {entries} entries for {len(rows)} rows"
        for value, count in Counter(getattr(row, index) for row in rows).items():
            assert reader.count(**{index: value}) == count, f"{view.name}: index {index} at {value!r}"
