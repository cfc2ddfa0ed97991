from __future__ import annotations

import pytest

from leftfold import InfrastructureError, OutcomeUnknown
from leftfold.kafka.client.in_flight import CommandAnswer, PendingAnswers


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
