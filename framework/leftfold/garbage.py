"""What a long-running process of ours sets up once."""

from __future__ import annotations

import gc

__all__ = ["tuned_gc"]


def tuned_gc() -> None:
    """Leaves what is loaded to itself and collects new garbage seldom.

    Lanes and folds make millions of small values that die by reference count; the default thresholds spend a third
    of the time looking for cycles among them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
