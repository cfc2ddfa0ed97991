"""What the demo says."""

from __future__ import annotations

from rich.console import Console

__all__ = ["say"]

say = Console(highlight=False, markup=False, soft_wrap=True).print
