"""Evolving rows as fast as the view's own function does, and asking whether one can be stored."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from leftfold.view import FoldView, View

__all__ = ["Unstorable", "check_storable", "evolver"]


class Unstorable(Exception):
    """Rows cannot be encoded where they must be stored; folding these again step by step finds the events that made
    them so.

    Args:
        rows: what the fold calls them.
    """

    def __init__(self, rows: Collection[Any], why: Exception) -> None:
        super().__init__(repr(why))
        self.rows = frozenset(rows)


def check_storable(view: View[Any, Any], row: Any) -> None:
    """Raises whatever encoding the row raises."""
    view.rows.encode(row)
    view.rows.index_entries(row)


def evolver(view: View[Any, Any]) -> Callable[[Any, Any], Any]:
    """The view's fold step."""
    evolve: Callable[[Any, Any], Any] = view.evolve if isinstance(view, FoldView) else view.evolve_row
    return evolve
