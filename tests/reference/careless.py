"""The chain with checkouts that forget something: what the sums must notice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from events.baskets import BasketReopened
from events.payments import PaymentVoided
from leftfold import Finished, Process, Timer
from services.checkout.process import Effect, Sends, checkout, correlate, react
from services.checkout.progress import Input, Progress, Stage, evolve
from services.inventory.commands import Release
from services.payments.commands import Refund
from services.replenishment.process import replenishment
from tests.reference.chain import chain_with

__all__ = ["chain", "credulous", "forgetting", "greedy", "hasty", "patient", "surprised"]


def another(
    react: Callable[[Input, Progress], Sequence[Effect]] = react, evolve: Callable[[Progress, Input], Progress] = evolve
) -> Process[Any, Any, Any]:
    """The checkout with other rules."""
    return Process(
        checkout.name,
        inputs=Input,
        sends=Sends,
        state=Progress,
        initial_state=Progress(),
        correlate=correlate,
        react=react,
        evolve=evolve,
        version=checkout.version,
    )


def forgetting(forgotten: Callable[[Effect, Progress], bool]) -> Process[Any, Any, Any]:
    """The checkout without some effects, given the state before the input that leads to them."""

    def forgetful(given: Input, state: Progress) -> Sequence[Effect]:
        return [effect for effect in react(given, state) if not forgotten(effect, state)]

    return another(forgetful)


def _believe(given: Input, state: Progress) -> Sequence[Effect]:
    return [Finished()] if isinstance(given, BasketReopened) else react(given, state)


def _overlook(state: Progress, given: Input) -> Progress:
    return state if isinstance(given, PaymentVoided) and state.stage is Stage.NEW else evolve(state, given)


chain = chain_with(processes=[forgetting(lambda effect, state: isinstance(effect, Release)), replenishment])
"""Gives no stock back."""
patient = chain_with(processes=[forgetting(lambda effect, state: isinstance(effect, Timer))])
"""Has no deadline."""
hasty = chain_with(
    processes=[forgetting(lambda effect, state: isinstance(effect, Release) and effect.stock_id in state.unanswered)]
)
"""Gives back only what was reserved when it ended, and nothing that was under way."""
greedy = chain_with(processes=[forgetting(lambda effect, state: isinstance(effect, Refund))])
"""Keeps the money of a basket that an operator has reopened."""
credulous = chain_with(processes=[another(_believe)])
"""Takes a basket that is open again for the end of everything."""
surprised = chain_with(processes=[another(evolve=_overlook)])
"""Forgets a payment that was void before the checkout began."""
