"""`leftfold.lock`: what every fold says and every event version looks like, committed so that a change is noticed."""

from __future__ import annotations

from leftfold.compatibility.lock import CheckFinding, FoldLock, Lock, compare, lock_of

__all__ = ["CheckFinding", "FoldLock", "Lock", "compare", "lock_of"]
