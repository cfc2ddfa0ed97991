"""A worker that is killed at any point leaves nothing half done."""

from __future__ import annotations

import signal

import pytest

from tests.worker.audit import audit
from tests.worker.broker import Broker
from tests.worker.conftest import Start
from tests.worker.load import Load
from tests.worker.points import TRANSACTION, Point
from tests.worker.process import Circumstances

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("at", ["marked", *TRANSACTION])
def test_a_worker_killed_in_a_batch_loses_and_doubles_nothing(broker: Broker, start: Start, at: str) -> None:
    bank = broker.bank()
    doomed = start(Circumstances(broker.address, bank.name, points=(Point(at, nth=1 if at == "marked" else 4),)))
    doomed.wait_serving(4)
    with Load(broker.settings, bank) as load:
        doomed.wait_point()
        assert doomed.wait_end() == -signal.SIGKILL
        start(Circumstances(broker.address, bank.name)).wait_serving(4)
        load.wait_answered(200)
    assert audit(broker, bank, load.sent) == []
