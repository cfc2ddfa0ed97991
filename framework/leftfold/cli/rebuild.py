"""`leftfold rebuild`: views folded again from the whole log."""

from __future__ import annotations

from leftfold.cli.options import examples

__all__ = ["EXAMPLES", "rebuild"]

EXAMPLES = examples("leftfold rebuild")


def rebuild() -> None:
    """Fold views again from the whole log."""
