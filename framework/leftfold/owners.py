"""Whose files these are: what another user of the machine has written is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_foreign"]


def is_foreign(path: Path) -> bool:
    """Whether a file or directory belongs neither to this user nor to root; never where systems know no users."""
    return hasattr(os, "geteuid") and path.stat().st_uid not in (0, os.geteuid())
