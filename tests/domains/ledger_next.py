"""The ledger's summary as the next version of the code folds it."""

from __future__ import annotations

from dataclasses import replace

from leftfold import App, FoldView
from tests.domains.ledger import LedgerEvent, Moved, Summary, ledgers, summarise

__all__ = ["app", "summary"]


def summarise_next(row: Summary | None, event: LedgerEvent) -> Summary | None:
    """Counts each move twice."""
    found = summarise(row, event)
    return replace(found, moves=found.moves + 1) if found and isinstance(event, Moved) else found


summary = FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=summarise_next, version=2)
app = App("ledgers", partitions=4, deciders=[ledgers], views=[summary])
