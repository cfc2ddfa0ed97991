"""A service among hostile writers: its worker, router, tail, reaction and clients go on, and log nothing raw."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from leftfold.engine.reply import ack
from leftfold.engine.router import Router
from leftfold.errors import ContractError
from leftfold.local import embedded
from leftfold.ports import RawRecord
from leftfold.position import Position
from tests.cli.guild import HEARD, app
from tests.cli.shell import ROOT, Shell, serving
from tests.hostility import worsened

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
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


def test_each_part_of_a_service_goes_on_among_hostile_records(tmp_path: Path, wait_until: Wait) -> None:
    rng, heard, sent = random.Random(15), tmp_path / "heard", 0
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
                sent += 1
                bell = f"good-{sent}"
                fields = json.dumps({"bell": bell, "at": "2020-01-01T00:00:00Z"})
                told = shell("send", "Wind", fields, "--timeout", "240")
                assert told.code == 0, told
                wait_until(lambda: heard.exists() and f"{bell}\n" in heard.read_text("utf-8"), bell)  # noqa: B023
                wait_until(lambda: shell("get", "wound", bell).code == 0, f"the row of {bell}")  # noqa: B023
    said = shell.said()
    assert STEERING.search(said) is None
    assert not any(f'"event": "{event}"' in said for event in ("failed", "restarting", "view stopped"))


def write(producer: Producer, record: RawRecord) -> None:
    """Writes it, unless it stops a router: that events which it cannot route do is by design."""
    if record.topic == "bells.events":
        try:
            router.route(record)
        except ContractError:
            return
    headers: Sequence[tuple[str, bytes | None]] = record.headers
    producer.produce(record.topic, record.value, record.key, 0, headers=list(headers))
    producer.poll(0)
