"""The chain with checkouts that forget something: what the sums must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leftfold import Process, Timer
from services.checkout.process import Effect, Sends, checkout, correlate, react
from services.checkout.progress import Input, Progress, evolve
from services.inventory.commands import Release
from services.replenishment.process import replenishment
from tests.reference.chain import chain_with

__all__ = ["chain", "forgetting", "hasty", "patient"]


def forgetting(forgotten: Callable[[Effect, Progress], bool]) -> Process[Any, Any, Any]:
    """The checkout without some effects, given the state before the input that leads to them."""

    def forgetful(given: Input, state: Progress) -> Sequence[Effect]:
        return [effect for effect in react(given, state) if not forgotten(effect, state)]

    return Process(
        checkout.name,
        inputs=Input,
        sends=Sends,
        state=Progress,
        initial_state=Progress(),
        correlate=correlate,
        react=forgetful,
        evolve=evolve,
        version=checkout.version,
    )


chain = chain_with(processes=[forgetting(lambda effect, state: isinstance(effect, Release)), replenishment])
"""Gives no stock back."""
patient = chain_with(processes=[forgetting(lambda effect, state: isinstance(effect, Timer))])
"""Has no deadline."""
hasty = chain_with(
    processes=[forgetting(lambda effect, state: isinstance(effect, Release) and effect.stock_id in state.unanswered)]
)
"""Gives back only what was reserved when it ended, and nothing that was under way."""
