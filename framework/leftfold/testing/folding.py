"""Folds events into a view's rows in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypeVar

from leftfold.keys import NoRowKey
from leftfold.messages import Event
from leftfold.view import View

__all__ = ["fold"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


def fold(view: View[Row, K], /, *events: Event) -> Mapping[K, Row]:
    """The view's rows after these events; events that it does not read are passed over."""
    rows: dict[str, Any] = {}
    for event in events:
        if not isinstance(event, view.events):
            continue
        stream = getattr(event, type(event).__leftfold__.key)
        for key, item in view.touches(event, stream):
            if isinstance(item, NoRowKey):
                raise item
            row = view.evolve_row(rows.get(key), item)
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = view.rows.decode(dict(zip(view.rows.columns, view.rows.encode(row), strict=True)))
    return {view.keys.decode(key): row for key, row in rows.items()}
