from __future__ import annotations

import gc
from collections.abc import Iterator
from threading import Thread

import pytest

from leftfold import InfrastructureError, OutcomeUnknown
from leftfold.kafka.client.in_flight import CommandAnswer, PendingAnswers
from tests.waiting import WAIT_SECONDS


class Waiting:
    """A caller, with the answers that it got."""

    def __init__(self) -> None:
        self.answers: list[CommandAnswer] = []

    def resolve(self, answer: CommandAnswer) -> None:
        self.answers.append(answer)


def test_no_caller_waits_behind_the_end_of_a_client() -> None:
    """It may be closed at any time between a caller's last look and its wait."""
    pending, before, behind = PendingAnswers(), Waiting(), Waiting()
    body = b"type", b"{}", None
    pending.add(b"1", body, before)
    pending.close()
    for id_ in (b"1", b"2"):
        with pytest.raises(InfrastructureError, match="this client is closed; nothing was sent"):
            pending.add(id_, body, behind)
    assert before.answers == [], "its answer may still come while the client is being closed"
    pending.give_up("the client was closed")
    assert [type(answer) for answer in before.answers] == [OutcomeUnknown]


class Collecting(bytes):
    """An id during whose registration the garbage collector runs."""

    def __hash__(self) -> int:
        gc.collect()
        return super().__hash__()


def test_an_abandoned_sender_that_is_collected_while_another_registers_blocks_nothing() -> None:
    pending, waiter, body = PendingAnswers(), Waiting(), (b"type", b"{}", None)

    def send() -> Iterator[object]:
        pending.add(b"abandoned", body, waiter)
        try:
            yield b"abandoned"
        finally:
            pending.remove(b"abandoned", waiter)

    sending = send()
    next(sending)
    cycle: list[object] = [sending]
    cycle.append(cycle)
    del sending, cycle
    registering = Thread(target=pending.add, args=(Collecting(b"1"), body, waiter), daemon=True)
    registering.start()
    registering.join(WAIT_SECONDS)
    assert not registering.is_alive(), "the collector removed a waiter under the lock that this one needs"
    pending.resolve(b"abandoned", b"too late")
    pending.resolve(b"1", b"an answer")
    assert waiter.answers == [b"an answer"]
