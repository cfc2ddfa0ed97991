"""Many commands under way at once, with a bound on how many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from leftfold.errors import LeftfoldError, OutcomeUnknown
from leftfold.kafka.outbox import Outbox, Parcel
from leftfold.kafka.pending import Answer, Pending, Resolve

__all__ = ["Burst"]


class Burst:
    """Sends parcels and collects their answers in order.

    Args:
        timeout: seconds that each answer may take. most: how many may be unanswered at once.
        why: says why there was no answer, asked once a deadline has passed.
    """

    def __init__(
        self, outbox: Outbox, pending: Pending, why: Callable[[Parcel], str], *, timeout: float, most: int
    ) -> None:
        self._outbox, self._pending, self._why = outbox, pending, why
        self._timeout, self._most = timeout, most
        self._changed = threading.Condition()
        self._answers: list[Answer | None] = []
        self._sent: list[tuple[Parcel, Resolve, float] | None] = []
        self._open = self._oldest = 0

    def run(self, parcels: Iterable[Parcel | LeftfoldError]) -> Iterator[Answer]:
        """The answers of all parcels, in their order; an error instead of a parcel is its own answer."""
        try:
            for parcel in parcels:
                self._send(parcel)
                yield from self._settled()
            while self._oldest < len(self._answers):
                self._wait_oldest()
                yield from self._settled()
        finally:
            for sent in self._sent[self._oldest :]:
                if sent is not None:
                    self._pending.remove(sent[0].id, sent[1])
