"""Sends the chain's history through the worker, in the background, whatever happens to the worker meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection
from itertools import islice

from leftfold import OutcomeUnknown, Position, Receipt
from leftfold.client.commands import Client
from services.baskets.commands import BasketCommand
from services.baskets.history import history

__all__ = ["Loading"]

SHEAF = 5_000
Item = tuple[str, BasketCommand]


class Loading(threading.Thread):
    """A client that sends every command until it is answered; an unknown outcome is asked for again by its id."""

    def __init__(self, client: Client, weeks: Collection[int], total: int) -> None:
        super().__init__(name="loading", daemon=True)
        self._client, self._weeks, self.total = client, weeks, total
        self.counts: Counter[str] = Counter()
        self.position = Position()
        self.seconds = 0.0
        """From the first command to the last answer so far."""
        self.failure: Exception | None = None
        self._moved = threading.Condition()
        self._pace: int | None = None

    @property
    def answered(self) -> int:
        """Commands answered so far."""
        return self.counts["accepted"] + self.counts["rejected"]

    def slow_down(self, pace: int | None) -> None:
        """Sends so many commands a second from now on, or as many as go with None."""
        self._pace = pace
        with self._moved:
            self._moved.notify_all()

    def run(self) -> None:
        """Sends everything, in time order."""
        began = time.monotonic()
        try:
            commands = history(self._weeks)
            while sheaf := list(islice(commands, SHEAF if self._pace is None else max(1, self._pace // 10))):
                sent = time.monotonic()
                self._send(sheaf, began)
                with self._moved:
                    self._moved.wait_for(lambda: self._pace is None, max(0.0, self._spare(len(sheaf), sent)))
        except Exception as error:  # noqa: BLE001  # `wait_answered` raises it
            self.failure = error
        finally:
            with self._moved:
                self._moved.notify_all()

    def wait_answered(self, share: float, timeout: float = 900.0) -> None:
        """Waits until this share of the commands is answered.

        Raises:
            TimeoutError: it takes longer than `timeout` seconds.
        """
        with self._moved:
            done = self._moved.wait_for(
                lambda: self.answered >= share * self.total or self.failure is not None, timeout
            )
        if self.failure is not None:
            raise self.failure
        if not done:
            raise TimeoutError(f"only {self.answered:,} of {self.total:,} commands were answered in {timeout:.0f} s")

    def _spare(self, count: int, began: float) -> float:
        return count / self._pace - (time.monotonic() - began) if self._pace else 0.0

    def _send(self, sheaf: list[Item], began: float) -> None:
        while sheaf:
            commands = [command for _, command in sheaf]
            answers = self._client.send_many(
                commands, ids=[id_ for id_, _ in sheaf], times=[c.at for c in commands], timeout=20.0
            )
            again = []
            for item, answer in zip(sheaf, answers, strict=True):
                if isinstance(answer, OutcomeUnknown):
                    self.counts["asked again"] += 1
                    again.append(item)
                elif isinstance(answer, Receipt):
                    self.counts["accepted"] += 1
                    self.position |= answer.position
                else:
                    self.counts["rejected"] += 1
                    self.counts[f"{type(answer).__name__}: {answer}"] += 1
            with self._moved:
                self.seconds = time.monotonic() - began
                self._moved.notify_all()
            sheaf = again
