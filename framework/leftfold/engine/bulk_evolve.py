"""Evolving rows in bulk: as fast as the view's own function, or with a look at each row on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leftfold.view import FoldView, View

__all__ = ["Unstorable", "check_storable", "evolver"]


class Unstorable(Exception):
    """A folded row cannot be encoded; folding again with a look at each row finds the event that made it so."""


def check_storable(view: View[Any, Any], row: Any) -> None:
    """Raises whatever encoding the row raises."""
    view.rows.encode(row)
    view.rows.index_entries(row)


def evolver(view: View[Any, Any], *, careful: bool = False) -> Callable[[Any, Any], Any]:
    """The view's fold step.

    Args:
        careful: it also raises when the row after the step cannot be encoded.
    """
    evolve: Callable[[Any, Any], Any] = view.evolve if isinstance(view, FoldView) else view.evolve_row
    if not careful:
        return evolve

    def evolve_storably(row: Any, item: Any) -> Any:
        row = evolve(row, item)
        if row is not None:
            check_storable(view, row)
        return row

    return evolve_storably
