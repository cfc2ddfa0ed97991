"""A service among hostile writers: its worker, router, projector, reaction and clients go on, and log nothing raw."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from leftfold.engine.processing.command_wire import ack
from leftfold.engine.processing.process_wire import Router, Unusable
from leftfold.errors import ContractError
from leftfold.local import embedded
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord
from tests.cli.guild import HEARD, app
from tests.cli.shell import ROOT, Shell, serving
from tests.hostility import worsened
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

CASES = 300
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
WOUND = json.dumps({"bell": "b", "at": "2020-01-01T00:00:00Z"}).encode()
TOLD = [("ce_specversion", b"1.0"), ("ce_id", b"c"), ("ce_source", b"x"), ("ce_subject", b"b")]
TIME = ("ce_time", b"2026-01-01T00:00:00Z")
GOOD = [
    ("bells.commands", WOUND, [*TOLD, ("ce_type", b"bells.Wind.v1"), TIME, ("reply_to", b"guild.replies/0")]),
    (
        "bells.events",
        WOUND,
        [*TOLD, ("ce_type", b"bells.Wound.v1"), TIME, ("ce_sequence", b"1"), ("ce_decision", b"1/1")],
    ),
    ("guild.replies", ack(1, 1, Position.at("bells.events", 0, 7).to_json()), [("ce_causationid", b"c")]),
]
router = Router("guild", app.processes[0], lambda key: 0)


def test_each_part_of_a_service_continues_among_hostile_records(tmp_path: Path) -> None:
    rng, heard, sent, stops = random.Random(15), tmp_path / "heard", 0, ""
    with embedded(tmp_path / "data") as servers:
        shell = Shell(tmp_path, {
            "LEFTFOLD_APP": "tests.cli.guild:app", "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": servers.kafka,
            "LEFTFOLD_REDIS_URL": servers.redis, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}", HEARD: str(heard),
        })  # fmt: skip
        assert shell("topics", "ensure").code == 0
        producer = Producer({"bootstrap.servers": servers.kafka, "message.max.bytes": 2_000_000})
        with serving(shell, "bells", "watch", "herald", "wound", "--max-parked", str(CASES)):
            shell.wait_said("reacting", "routing", "following")
            for _ in range(3):
                for topic, value, headers in GOOD * (CASES // 3):
                    write(producer, worsened(rng, RawRecord(topic, 0, 0, b"b", value, headers, 0)))
                assert producer.flush(240.0) == 0
                stops = stops or skip_what_stops(shell, producer)
                sent += 1
                bell = f"good-{sent}"
                fields = json.dumps({"bell": bell, "at": "2020-01-01T00:00:00Z"})
                shell("send", "Wind", fields, "--timeout", "240").ok()
                wait_until(lambda: heard.exists() and f"{bell}\n" in heard.read_text("utf-8"), bell)  # noqa: B023
                wait_until(lambda: shell("get", "wound", bell).code == 0, f"the row of {bell}")  # noqa: B023
    assert STEERING.search(shell.said()) is None
    ended = [line for line in shell.lines() if line["event"] in ("failed", "restarting", "view stopped")]
    assert {line["part"] for line in ended} == {"watch.router"}, ended
    assert all(why.startswith(f"{stops} cannot be routed to watch: ") for why in refusals(shell)), "at that event alone"
    assert [line for line in shell.lines() if line["event"] == "event dead-lettered"]


def write(producer: Producer, record: RawRecord) -> None:
    """Writes it, unless it stops a router: that events which it cannot read do is by design, and one is enough."""
    if record.topic == "bells.events" and stops_routers(record):
        return
    headers: Sequence[tuple[str, bytes | None]] = record.headers
    producer.produce(record.topic, record.value, record.key, 0, headers=list(headers))
    producer.poll(0)


def stops_routers(record: RawRecord) -> bool:
    """Whether no router continues behind an event; it does behind values that make no input."""
    try:
        router.route(record)
    except Unusable:
        return False
    except ContractError:
        return True
    return False


def skip_what_stops(shell: Shell, producer: Producer) -> str:
    """Writes an event that no code can read, and types what the router that ends at it says; the event's place."""
    _, _, headers = GOOD[1]
    producer.produce("bells.events", b"{}", b"b", 0, headers=list(headers))
    assert producer.flush(240.0) == 0
    wait_until(lambda: refusals(shell), "the router to end")
    said = refusals(shell)[0]
    (words,) = re.findall(r"leftfold (log skip .+) --reason WHY$", said)
    shell(*shlex.split(words), "--reason", "ticket 4711", "--yes").ok()
    return said.partition(" cannot be routed to watch: ")[0]


def refusals(shell: Shell) -> list[str]:
    """Why the router of the process has ended; a line that is being written is not there yet."""
    whole = [line for line in shell.said().splitlines() if line.endswith("}")]
    lines = [json.loads(line) for line in whole if '"failed"' in line]
    return [line["why"] for line in lines if line["part"] == "watch.router"]
