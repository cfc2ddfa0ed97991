"""`leftfold.lock`: the released hash of each fold and schema of each event version, committed to show changes."""

from __future__ import annotations

from leftfold.compatibility.lock import CheckFinding, FoldLock, Lock, compare, lock_of

__all__ = ["CheckFinding", "FoldLock", "Lock", "compare", "lock_of"]
