"""Where a rebuild runs: in this process or on Spark, by what its plans expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leftfold.engine.forecast import START_SECONDS
from leftfold.engine.plan import RebuildPlan

__all__ = ["MOST_SORTED", "EngineChoice", "choose_engine"]

MOST_SORTED = 2_000_000
"""How many events a process sorts at most, since it does so in memory; Spark spills to disk."""


class EngineChoice(NamedTuple):
    """Whether Spark runs a rebuild, and why."""

    spark: bool
    why: str

    def __str__(self) -> str:
        return f"{'on Spark' if self.spark else 'in this process'}: {self.why}"


def choose_engine(plans: Sequence[RebuildPlan]) -> EngineChoice:
    """The engine that is expected to be done first; views that are computed and large sorts are Spark's.

    Args:
        plans: of all views, for as many cores as Spark would have.
    """
    if computed := [plan.view for plan in plans if not plan.folded]:
        return EngineChoice(spark=True, why=f"view {computed[0]} is computed by Spark")
    events = sum(plan.events for plan in plans if not plan.stream_keyed)
    if events > MOST_SORTED:
        why = f"{events:,} events are to be sorted, and this process sorts {MOST_SORTED:,} at most"
        return EngineChoice(spark=True, why=why)
    here = sum(plan.in_process.work for plan in plans)
    there = START_SECONDS + sum(plan.work for plan in plans)
    if here <= there:
        return EngineChoice(spark=False, why=f"{here:.0f} s expected, and {there:.0f} s with Spark")
    return EngineChoice(spark=True, why=f"{there:.0f} s expected, and {here:.0f} s in this process")
