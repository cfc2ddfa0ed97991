"""`leftfold rebuild --sample`: what a rebuild would change, by a share of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leftfold.cli.console import amount, emit, say
from leftfold.cli.differing import show_rows
from leftfold.cli.failures import Usage

if TYPE_CHECKING:
    from leftfold.engine.verification import Sample

__all__ = ["share_of", "tell_sample"]


def share_of(text: str, option: str, whole: str) -> float:
    """A share as it is typed: `1%` or `0.01`.

    Args:
        option: that it was typed for. whole: what it is a share of.

    Raises:
        Usage: it is none, or not above 0 and at most 1.
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise Usage(f"{option} {text!r} is no share of {whole}; it is above 0 and at most 100%, such as 1% or 0.01")
    return share


def tell_sample(sample: Sample, *, as_json: bool) -> int:
    """Prints what differs; returns the exit code: 3 when something does."""
    code = 3 if sample.differences or sample.newly else 0
    if as_json:
        emit({**sample.__dict__, "differences": [d.__dict__ for d in sample.differences]})
        return code
    verdict = f"{amount(len(sample.differences), 'row')} would change" if code else "none would change"
    if not (code or sample.rows):
        verdict = "no row is among these keys, so nothing is known; take a larger share"
    more = f" (of {sample.differing:,} that seem to)" if sample.differing > len(sample.differences) > 0 else ""
    folded = f"{amount(sample.rows, 'row')}, {sample.share:.3%} of the keys, in {sample.seconds:.1f} s"
    say(f"{sample.view}: {folded}: {verdict}{more}")
    show_rows(sample.differences, "live", "rebuilt")
    for key, why in list(sample.newly.items())[:5]:
        say(f"  would park {key}: {why}")
    return code
