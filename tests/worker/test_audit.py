"""The auditor finds each kind of damage in hand-made histories."""

from __future__ import annotations

import pytest

from leftfold.errors import ContractError
from leftfold.model.position import Position, Receipt
from tests.worker.bank import bank
from tests.worker.load import Fact, Sent, violations

ONE, TWO = ("account", 1, "one", 1, 2), ("account", 2, "one", 2, 2)
THREE = ("account", 3, "two", 1, 1)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([ONE, TWO, THREE], set()),
        ([ONE, TWO], {"lost"}),
        ([], {"lost"}),
        ([ONE, THREE], {"torn", "fork", "lost"}),
        ([ONE, TWO, THREE, THREE], {"double", "fork", "lost"}),
        ([ONE, TWO, THREE, ("account", 4, "two", 1, 1)], {"double", "lost"}),
        ([ONE, TWO, ("account", 4, "two", 1, 1)], {"fork", "misled"}),
        ([TWO, ONE, THREE], {"fork", "double", "misled"}),
        ([ONE, TWO, THREE, ("account", 4, "refused", 1, 1)], {"refused but written"}),
        ([ONE, TWO, THREE, ("account", 4, "unknown", 1, 1)], {"unasked"}),
    ],
)
def test_each_damage_has_its_name(history: list[tuple[str, int, str, int, int]], found: set[str]) -> None:
    deposit = bank("bank").deposit("account")
    sent = [
        Sent("one", "account", deposit, 2, Receipt(Position(), 2, 2)),
        Sent("two", "account", deposit, 1, Receipt(Position(), 3, 1)),
        Sent("refused", "account", deposit, 1, ContractError("no")),
    ]
    facts = [Fact(*fields, partition=0, offset=offset) for offset, fields in enumerate(history)]
    assert {line.partition(":")[0] for line in violations(facts, sent)} == found


def test_a_command_without_an_answer_is_found() -> None:
    assert violations([], [Sent("one", "account", bank("bank").deposit("account"), 1)]) == ["unanswered: one"]
