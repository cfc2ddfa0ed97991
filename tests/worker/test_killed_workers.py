"""A worker that is killed at any point leaves nothing half done."""

from __future__ import annotations

import signal

import pytest

from leftfold import names
from tests.worker.audit import audit, facts, violations
from tests.worker.broker import Broker
from tests.worker.load import Load
from tests.worker.points import TRANSACTION, Point
from tests.worker.process import Circumstances
from tests.worker.processes import Start

pytestmark = pytest.mark.servers

HALF_DONE = TRANSACTION[TRANSACTION.index("half produced") : TRANSACTION.index("after commit_transaction")]


@pytest.mark.parametrize("at", ["marked", *TRANSACTION])
def test_a_worker_killed_in_a_batch_loses_and_doubles_nothing(broker: Broker, start: Start, at: str) -> None:
    bank = broker.bank()
    doomed = start(Circumstances(broker.address, bank.name, points=(Point(at, nth=1 if at == "marked" else 4),)))
    doomed.wait_serving(4)
    with Load(broker.settings, bank) as load:
        doomed.wait_point()
        assert doomed.wait_end() == -signal.SIGKILL
        start(Circumstances(broker.address, bank.name)).wait_serving(4)
        load.wait_answered(100)
    assert audit(broker, bank, load.sent) == []
    if at in HALF_DONE:
        aborted_too = facts(broker.records(names.events(bank.name), committed=False))
        assert violations(aborted_too, load.sent), "nothing was half done, so nothing was shown"


def test_a_worker_killed_while_it_restores_leaves_the_next_one_all_it_needs(broker: Broker, start: Start) -> None:
    bank = broker.bank()
    with Load(broker.settings, bank) as load:
        first = start(Circumstances(broker.address, bank.name))
        load.wait_answered(200)
    first.kill()
    broker.wipe(bank.state)
    for at in ("restore begins", "restore reads", "after flush", "after commit_transaction"):
        doomed = start(Circumstances(broker.address, bank.name, points=(Point(at),)))
        assert doomed.wait_end() == -signal.SIGKILL
        assert [told["at"] for told in doomed.told("point")] == [at]
        assert doomed.serves == []
    start(Circumstances(broker.address, bank.name)).wait_serving(4)
    assert audit(broker, bank, load.sent) == []
