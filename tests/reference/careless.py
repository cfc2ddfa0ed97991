"""The chain with a checkout that gives no stock back: what the sums must notice."""

from __future__ import annotations

from collections.abc import Sequence

from leftfold import Process
from services.checkout.process import Effect, Sends, checkout, correlate, react
from services.checkout.progress import Input, Progress, evolve
from services.inventory.commands import Release
from services.replenishment.process import replenishment
from tests.reference.chain import chain_with

__all__ = ["chain"]


def forgetful(given: Input, state: Progress) -> Sequence[Effect]:
    """The next step, without the arm that gives stock back."""
    return [effect for effect in react(given, state) if not isinstance(effect, Release)]


careless = Process(
    checkout.name,
    inputs=Input,
    sends=Sends,
    state=Progress,
    initial_state=Progress(),
    correlate=correlate,
    react=forgetful,
    evolve=evolve,
)
chain = chain_with(processes=[careless, replenishment])
