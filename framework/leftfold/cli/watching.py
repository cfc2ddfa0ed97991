"""What changed among a project's files, by looking at them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

__all__ = ["Seen", "changes", "scan"]

Seen: TypeAlias = Mapping[str, tuple[int, int]]
_SKIPPED = frozenset({"__pycache__", "node_modules", "tests", "build", "dist"})


def scan(root: Path) -> Seen:
    """Every Python file and pyproject.toml below a directory, with modification time and size.

    Hidden directories, virtual environments and tests are left out.
    """
    seen: dict[str, tuple[int, int]] = {}
    for place, directories, files in os.walk(root):
        directories[:] = [d for d in directories if not d.startswith(".") and d not in _SKIPPED]
        if "pyvenv.cfg" in files:
            directories.clear()
            continue
        for name in files:
            if name.endswith(".py") or name == "pyproject.toml":
                path = Path(place, name)
                try:
                    status = path.stat()
                except OSError:
                    continue
                seen[str(path.relative_to(root))] = status.st_mtime_ns, status.st_size
    return seen


def changes(before: Seen, after: Seen) -> list[str]:
    """The files that came, went or changed, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
