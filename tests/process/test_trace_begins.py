"""`leftfold log trace` reads nothing that is older than the id that it is asked for, on a real broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leftfold.engine.causation import FoundRecords, search
from leftfold.engine.processing.command_wire import command_id
from leftfold.kafka import process_router as clock
from leftfold.kafka.settings import KafkaSettings
from leftfold.runtime.operations import traces as tracing
from tests.domains.trade import PATIENCE, Place, Released, Reserved
from tests.process.test_trace import rows
from tests.process.trading import Trading

pytestmark = pytest.mark.servers


def test_what_is_older_than_an_id_is_not_looked_at_and_its_timer_is_found(
    settings: KafkaSettings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[FoundRecords] = []

    def noted(*given: Any, **more: Any) -> FoundRecords:
        found.append(search(*given, **more))
        return found[-1]

    monkeypatch.setattr(tracing, "search", noted)
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))
    with Trading(settings) as trading:
        for number in range(20):
            trading.client.send(Place(order=f"{number}", product=f"{number}", at=datetime.now(UTC)), timeout=240.0)
        trading.await_event("stock", Reserved(product="19", order="19"))
        id_ = command_id()
        at = datetime.now(UTC) - PATIENCE + timedelta(seconds=3)
        trading.client.send(Place(order="dated", product="dated", at=at), id=id_, timeout=240.0)
        trading.await_event("stock", Released(product="dated", order="dated"))
        trading.client.send(Place(order="behind", product="behind", at=datetime.now(UTC)), timeout=240.0)
    whole = rows(capsys, settings, id_)
    assert "due" in {row["kind"] for row in whole}
    monkeypatch.setattr(tracing, "ASTRAY", timedelta())
    for row in whole:
        bounded = rows(capsys, settings, row["id"])
        assert [(one["id"], one["depth"]) for one in bounded] == [(one["id"], one["depth"]) for one in whole]
        assert found[-1].looked < found[0].looked
