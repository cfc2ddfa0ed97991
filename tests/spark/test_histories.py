"""Any history: a rebuild on Spark, the projector and the fold in memory give the same rows, deletes and spreads
included.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from operator import or_
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from leftfold import memory
from leftfold.engine.rebuild.result import Agreement
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model.position import Receipt
from tests.domains.ledger import Close, LedgerCommand, Move, Open, app
from tests.spark.conftest import WAIT_SECONDS, Shop

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = itertools.count()

steps = st.tuples(
    st.sampled_from(["open", "move", "move", "move", "close"]),
    st.integers(0, 4),
    st.integers(0, 2),
    st.decimals("-99.99", "99.99", places=2),
    st.lists(st.integers(0, 3), max_size=3),
)


def command(prefix: str, step: Any) -> LedgerCommand:
    """A step as a command on names of this example only."""
    what, ledger, owner, amount, tags = step
    names = {"ledger": f"{prefix}l-{ledger}", "owner": f"{prefix}o-{owner}"}
    match what:
        case "open":
            return Open(**names)
        case "close":
            return Close(**names)
        case _:
            shown = Decimal("1.00") if amount == Decimal("66.60") else amount
            return Move(**names, amount=shown, tags=tuple(f"{prefix}t-{tag}" for tag in tags))


@given(st.lists(steps, min_size=1, max_size=60))
@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_rebuild_tail_and_memory_agree_on_any_history(shop: Shop, history: list[Any]) -> None:
    prefix = f"h{next(_numbers)}/"
    commands = [command(prefix, step) for step in history]
    with memory(app, now=NOW) as world, KafkaClient(app.name, shop.kafka) as client:
        world.client.send_many(commands)
        answers = client.send_many(commands, timeout=WAIT_SECONDS)
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        assert len(receipts) == len(commands)
        after = reduce(or_, (receipt.position for receipt in receipts))
        for view in app.views:
            shop.views[view].wait_reached(after, timeout=WAIT_SECONDS)
            expected = dict(world.views[view].items())
            assert mine(shop, view, prefix) == expected, f"{view.name} by the tail"
            assert shop.rebuild(view).run().agreement is Agreement.EQUAL
            assert mine(shop, view, prefix) == expected, f"{view.name} by Spark"


def mine(shop: Shop, view: Any, prefix: str) -> dict[Any, Any]:
    """The rows of this example."""
    return {key: row for key, row in shop.views[view].items() if key.startswith(prefix)}
