"""Many commands under way at once, with a bound on how many."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from leftfold.errors import LeftfoldError, OutcomeUnknown
from leftfold.kafka.outbox import Outbox, Parcel, no_room
from leftfold.kafka.pending import Answer, Pending

__all__ = ["Burst"]


class _Flight:
    """One command under way."""

    __slots__ = ("answer", "burst", "deadline", "id", "topic")

    def __init__(self, burst: Burst, topic: str, id_: bytes, deadline: float) -> None:
        self.burst, self.topic, self.id, self.deadline = burst, topic, id_, deadline
        self.answer: Answer | None = None

    def resolve(self, answer: Answer) -> None:
        """Lands it. The answer is set before the look at who waits: a waiter looks the other way round."""
        self.answer = answer
        if self.burst.awaited is self:
            with self.burst.changed:
                self.burst.changed.notify()


class Burst:
    """Sends parcels one behind the other and collects their answers in order.

    Args:
        timeout: seconds that each answer may take. most: how many may be under way at once.
        why: says why nothing was answered on a topic, once a deadline has passed.
    """

    def __init__(
        self, outbox: Outbox, pending: Pending, why: Callable[[str], str], *, timeout: float, most: int
    ) -> None:
        self._outbox, self._pending, self._why = outbox, pending, why
        self._timeout, self._most = timeout, most
        self._flights: deque[_Flight] = deque()
        self.changed = threading.Condition()
        self.awaited: _Flight | None = None

    def run(self, parcels: Iterable[Parcel | LeftfoldError]) -> Iterator[Answer]:
        """The answers to all parcels, in their order; an error instead of a parcel is its own answer."""
        flights = self._flights
        try:
            for parcel in parcels:
                self._launch(parcel)
                while flights and (len(flights) >= self._most or flights[0].answer is not None):
                    yield self._landed()
            while flights:
                yield self._landed()
        finally:
            for flight in flights:
                self._pending.remove(flight.id, flight)

    def _launch(self, parcel: Parcel | LeftfoldError) -> None:
        deadline = time.monotonic() + self._timeout
        if isinstance(parcel, LeftfoldError):
            flight = _Flight(self, "", b"", deadline)
            flight.answer = parcel
            self._flights.append(flight)
            return
        flight = _Flight(self, parcel.topic, parcel.id, deadline)
        self._flights.append(flight)
        try:
            self._pending.add(parcel.id, parcel.body, flight)
            if not self._outbox.put_by(parcel, deadline):
                raise no_room(parcel, self._timeout)
        except LeftfoldError as error:
            self._pending.remove(parcel.id, flight)
            flight.answer = error

    def _landed(self) -> Answer:
        """The answer to the oldest one, waited for until its deadline."""
        flight = self._flights[0]
        if flight.answer is None:
            with self.changed:
                self.awaited = flight
                self.changed.wait_for(lambda: flight.answer is not None, flight.deadline - time.monotonic())
                self.awaited = None
        answer = flight.answer if flight.answer is not None else self._overdue(flight)
        self._flights.popleft()
        return answer

    def _overdue(self, flight: _Flight) -> Answer:
        why = self._why(flight.topic)
        self._pending.remove(flight.id, flight)
        # It may have come while the reason was looked for.
        return flight.answer if flight.answer is not None else OutcomeUnknown(flight.id.decode(), why)
