"""Workers that are killed at any point leave nothing half done."""

from __future__ import annotations

import signal

import pytest

from leftfold.model import keys as names
from tests.worker.audit import audit, facts, violations, wait_decided
from tests.worker.broker import Broker
from tests.worker.load import Load
from tests.worker.points import TRANSACTION, Point
from tests.worker.process import Circumstances
from tests.worker.processes import Start

pytestmark = [pytest.mark.servers, pytest.mark.faults]


@pytest.mark.faults
def test_workers_killed_at_every_point_of_a_batch_lose_and_double_nothing(broker: Broker, start: Start) -> None:
    bank = broker.bank()
    with Load(broker.settings, bank) as load:
        for at in ("marked", *TRANSACTION):
            point = Point(at, nth=1 if at in {"marked", "half produced"} else 4)
            doomed = start(Circumstances(broker.distant, bank.name, points=(point,)))
            doomed.wait_point()
            assert doomed.wait_end() == -signal.SIGKILL
        start(Circumstances(broker.distant, bank.name)).wait_serving(4)
        load.wait_answered(100)
    wait_decided(broker, bank)
    assert audit(broker, bank, load.sent) == []
    aborted_too = facts(broker.records(names.events(bank.name), committed=False))
    assert violations(aborted_too, load.sent), "no transaction was left half done, so nothing was shown"


def test_workers_killed_while_they_restore_leave_the_next_one_all_it_needs(broker: Broker, start: Start) -> None:
    bank = broker.bank()
    with Load(broker.settings, bank) as load:
        first = start(Circumstances(broker.distant, bank.name))
        load.wait_answered(200)
    first.kill()
    broker.wipe(bank.state)
    for at in ("restore begins", "restore reads", "after flush", "after commit_transaction"):
        doomed = start(Circumstances(broker.distant, bank.name, points=(Point(at),)))
        assert doomed.wait_end() == -signal.SIGKILL
        assert [told["at"] for told in doomed.told("point")] == [at]
        assert doomed.serves == []
    start(Circumstances(broker.distant, bank.name)).wait_serving(4)
    assert audit(broker, bank, load.sent) == []
