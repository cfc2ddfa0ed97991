"""Which rows really differ from the log, while tails may be writing them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.diff import Fields, RowDifference
from leftfold.engine.places import place_of
from leftfold.engine.refolded import RowsFold
from leftfold.errors import InfrastructureError
from leftfold.flush import Generation
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Fields", "differences", "fields_of", "row_and_place"]

_PATIENCE = 30.0


def differences(
    view: View[Any, Any], generation: Generation, keys: Sequence[str], store: ViewStore, open_log: OpenBulkLog
) -> tuple[RowDifference, ...]:
    """Those of some rows that are not what the log says, each at the place where its bucket stood when it was read.

    `one` is the row as it is stored, `other` as it is folded.
    """
    seen = {key: row_and_place(generation, key, store) for key in keys}
    with closing(open_log()) as log:
        folded = RowsFold(view, generation, log, {key: place for key, (_, place) in seen.items()}).rows
    found = (
        RowDifference(key, row, fields_of(view, folded[key].row, folded[key].version)) for key, (row, _) in seen.items()
    )
    return tuple(difference for difference in found if difference.fields)


def row_and_place(generation: Generation, key: str, store: ViewStore) -> tuple[Fields | None, Position]:
    """A row and where exactly it stands: a row is not newer than a mark whose token is the same after it was read."""
    place, deadline = place_of(generation, key), time.monotonic() + _PATIENCE
    before = store.read(generation, [place])
    while time.monotonic() < deadline:
        after = store.read(generation, [place])
        if before.marks[place[0]].token == after.marks[place[0]].token:
            row = before.rows[0]
            text = None if row is None else {k.decode(): v.decode(errors="replace") for k, v in row.items()}
            return text, before.marks[place[0]].position
        before = after
    raise InfrastructureError(
        f"bucket {place[0]} of {generation.view} {generation.id} never stood still in {_PATIENCE:g} s"
    )


def fields_of(view: View[Any, Any], row: Any, version: int | None) -> Fields | None:
    """A row as it would be stored; None = no row."""
    if row is None:
        return None
    columns = (column.decode() for column in view.rows.columns)
    values = (value.decode(errors="replace") for value in view.rows.encode(row))
    told = {} if version is None else {"@version": str(version)}
    return {**dict(zip(columns, values, strict=True)), **told}
