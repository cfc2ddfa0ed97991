"""Finding what another installed wheel carries, without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["wheel_path"]


def wheel_path(package: str, *parts: str) -> Path | None:
    """Return a path inside an installed package, or None when the package or the path is missing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*parts)
    return path if path.exists() else None
