"""What `status` says of a view that is behind: how far, why so if that can be told, and what to type."""

from __future__ import annotations

from typing import Any

from leftfold.cli.console import amount
from leftfold.cli.options import EVERY
from leftfold.errors import LogHole
from leftfold.view import View

__all__ = ["unknown_lateness", "why_late"]

_FOLDED, _COMPUTED = 5.0, 2 * EVERY
"""Seconds behind which nobody takes for work under way: a silent tail is taken for dead after three."""


def why_late(view: View[Any, Any], *, behind: float, lag: int, tails: int) -> str:
    """Why a view may be so many seconds and offsets behind, '' when it is not far."""
    if behind <= (_FOLDED if view.folded else _COMPUTED):
        return ""
    far = f"view {view.name} is {behind:.0f} s behind, lag {lag:,}"
    if view.streamed:
        return f"{far}; its own stream keeps it: see whether that is at work"
    if not view.folded:
        return f"{far}; Spark computes it while this is at work: leftfold run {view.name}"
    if not tails:
        return (
            f"{far}, and no tail is at work on it, or one that hangs (a stream on Spark does not show itself); "
            f"start one: leftfold run {view.name}"
        )
    are = "is" if tails == 1 else "are"
    return (
        f"{far}, although {amount(tails, 'tail')} {are} at work: it catches up, was stopped, or hangs. See whether it "
        f"moves: leftfold status; another takes over from one that hangs: leftfold run {view.name}"
    )


def unknown_lateness(view: View[Any, Any], error: Exception) -> str:
    """Why nobody can tell how many seconds a view is behind."""
    if isinstance(error, LogHole):
        return f"view {view.name} stands before the start of what its topic still holds: {error}"
    return f"nobody can tell how many seconds view {view.name} is behind: {error}"
