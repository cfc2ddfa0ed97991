"""Whoever may send commands may backdate them: how much of that holds timers back is for the App to say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from leftfold import App
from leftfold.cli.main import run
from leftfold.engine.processing.log_time import Watermark
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.codec import header
from leftfold.runtime.operations import components as process_survey
from tests.process.alarms import Wind, app
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

punctual = App("belfry", partitions=4, deciders=app.deciders, processes=app.processes, lateness=timedelta())
patient = App("belfry", partitions=4, deciders=app.deciders, processes=app.processes)
LONG_AGO, LATER = datetime(2017, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["punctual", "patient"])
def test_a_backdated_command_holds_all_timers_back_unless_the_app_says_how_late_it_may_be(
    settings: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))
    monkeypatch.setattr(process_survey, "_FAR", 0.0)
    monkeypatch.setattr(Watermark, "until", lambda checkpoint, now: checkpoint)
    ensure(app, settings)

    def rung() -> bool:
        rang = (r for r in committed(settings, "bells.events") if header(r.headers, "ce_type") == b"bells.Rang.v1")
        return name.encode() in {record.key for record in rang}

    def told() -> tuple[int | None, str]:
        capsys.readouterr()
        run(["status", "--app", f"{__name__}:{name}", "--kafka", settings.bootstrap_servers, "--json"])
        out, err = capsys.readouterr()
        (row,) = [row for row in map(json.loads, out.splitlines()) if row["kind"] == "process"]
        return row["held"], err

    with Trading(settings, {"punctual": punctual, "patient": patient}[name], ("bells", "alarm", "router")) as trading:
        trading.client.send(Wind(bell="of somebody else", at=LATER), at=LONG_AGO, timeout=240.0)
        trading.client.send(Wind(bell=name, at=datetime.now(UTC)), timeout=240.0)
        if name == "punctual":
            wait_until(rung, lambda: f"the bell: {told()}")
            assert told()[0] == 0
        else:
            wait_until(lambda: told()[0] == 1, lambda: f"the timer, held back: {told()}")
            assert "process alarm: 1 timer held back by bells.events/" in told()[1]
            assert not rung()
