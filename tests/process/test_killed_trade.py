"""Workers and routers of `leftfold run` are killed again and again: each step happens once, and all comes to an end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.codec import MessageCodec, header
from tests.domains.trade import Confirmed, Dropped, Pay, Place, app
from tests.process.trading import committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

ROOT = Path(__file__).parents[2]
ORDERS, PAID, KILLS = 60, 20, 12


def shell(settings: KafkaSettings, *words: str) -> list[str]:
    """A command and its words, on this broker."""
    return [
        sys.executable,
        "-m",
        "leftfold.cli",
        *words,
        "--app",
        "tests.domains.trade:app",
        "--kafka",
        settings.bootstrap_servers,
    ]


def environment() -> dict[str, str]:
    """Where commands find the trade."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)])}


@pytest.fixture
def running(settings: KafkaSettings, tmp_path: Path) -> Iterator[psutil.Process]:
    """`leftfold run`, which starts again whatever dies."""
    command = shell(settings, "run", "--plain-logs")
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield psutil.Process(run.pid)
    finally:
        run.terminate()
        run.wait(240.0)


def happened(settings: KafkaSettings) -> Counter[object]:
    """How often each event was written, in all services."""
    found: Counter[object] = Counter()
    for decider in app.deciders:
        codec = MessageCodec(decider.events)
        for record in committed(settings, names.events(decider.name)):
            found[codec.wanted(header(record.headers, "ce_type"), record.value)] += 1
    return found


def parts(run: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """What runs, by name; what is dead already, or not yet itself, has none."""
    found = []
    for part in run.children():
        with suppress(psutil.NoSuchProcess):
            found += [(word, part) for word in part.cmdline() if word.startswith("--name=")]
    return found


def test_each_step_happens_once_whoever_is_killed(settings: KafkaSettings, running: psutil.Process) -> None:
    chance, killed = random.Random(11), Counter[str]()
    now = datetime.now(UTC)
    with KafkaClient(app.name, settings) as client:
        for number in range(ORDERS):
            # Every third order wants what there are two of.
            product = "scarce" if number % 3 == 0 else f"product-{number}"
            client.send(Place(order=f"o{number}", product=product, at=now), id=f"place-{number}", timeout=240.0)
            if number % (ORDERS // KILLS) == 0:
                wait_until(lambda: bool(parts(running)), "a part to run")
                name, part = chance.choice(parts(running))
                killed[name] += 1
                part.kill()
        bought = [number for number in range(ORDERS) if number % 3 == 1]
        for number in bought:
            client.send(Pay(order=f"o{number}"), id=f"pay-{number}", timeout=240.0)

    scarce = [f"o{number}" for number in range(ORDERS) if number % 3 == 0]

    def is_done() -> bool:
        seen = happened(settings)
        confirmed = all(seen[Confirmed(order=f"o{number}")] for number in bought)
        dropped = sum(1 for order in scarce if seen[Dropped(order=order, why="no scarce left")])
        return confirmed and dropped >= len(scarce) - 2 and seen.total() >= expected

    reserved = 2 * ORDERS // 3 + 2
    expected = ORDERS + reserved + 2 * len(bought) + len(scarce) - 2
    assert sum(killed.values()) == KILLS
    wait_until(is_done, lambda: f"{expected} events: {happened(settings).total()}, killed {dict(killed)}")
    again = {event: count for event, count in happened(settings).items() if count > 1}
    assert again == {}, f"killed {dict(killed)}"
    assert happened(settings).total() == expected


def test_status_tells_of_workers_and_routers(settings: KafkaSettings, running: psutil.Process) -> None:
    def told() -> dict[str, Any]:
        command = shell(settings, "status", "--json")
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return next(row for row in rows if row["kind"] == "process")

    assert running.is_running()
    wait_until(lambda: (told()["workers"], told()["routers"]) == (1, 1), lambda: f"one of each: {told()}")
    assert told()["name"] == "checkout"
