"""Topics that are trimmed or made again: nothing leaves that was not routed, and no router skips what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from leftfold import App
from leftfold.cli.main import run
from leftfold.engine.archive.retention import Trimming
from leftfold.errors import ConfigurationError, LogGap
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.log_identity import KnownLogs
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.cli.shell import Typing, typing_with
from tests.domains.trade import app, checkout_with, orders, payments, stock
from tests.process import alarms
from tests.process.routing.routers import EVENTS, member_with, plant, routed, routing
from tests.process.trading import Trading
from tests.settled import committed, wait_settled
from tests.waiting import step_until, wait_until

pytestmark = pytest.mark.servers

audited = App(
    "trade", partitions=app.partitions, deciders=[orders, stock, payments], processes=[checkout_with(name="audit")]
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that names an archive."""
    place = tmp_path_factory.mktemp("project")
    (place / "pyproject.toml").write_text(
        '[tool.leftfold]\napp = "tests.domains.trade:app"\narchive = "kept"\n', "utf-8"
    )
    return place


@pytest.fixture
def typed(
    settings: KafkaSettings, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typing:
    """Types `leftfold log ...` in the project."""
    monkeypatch.chdir(project)
    return partial(typing_with(capsys, "--kafka", settings.bootstrap_servers), "log")


def write(settings: KafkaSettings, *keys: str) -> None:
    """Orders that are placed, in a transaction."""
    plant(settings, [(key, "p") for key in keys])
    wait_settled(settings, EVENTS)


def lose(settings: KafkaSettings) -> None:
    """Deletes every event of orders, as an operator with Kafka's own tools would, without any check."""
    with Groups(settings) as groups:
        groups.delete_records(EVENTS, groups.ends([EVENTS]).offsets[EVENTS])


def await_routed(settings: KafkaSettings, failures: list[BaseException], key: str, process: str = "checkout") -> None:
    wait_until(lambda: bool(failures) or key in routed(settings, process), lambda: f"{key} in {routed(settings)}")
    assert not failures


def await_hole(failures: list[BaseException]) -> str:
    wait_until(lambda: bool(failures), "the router to refuse")
    assert isinstance(failures[0], LogGap)
    return str(failures[0])


@contextmanager
def member(settings: KafkaSettings) -> Iterator[None]:
    """A consumer that belongs to the group of routers."""
    group = names.group("trade", "checkout.router")
    config = {"group.id": group, "partition.assignment.strategy": "roundrobin", "enable.auto.commit": False}
    consumer = Consumer({**settings.librdkafka(), **config})
    consumer.subscribe([EVENTS])
    try:
        step_until(lambda: consumer.poll(0.1), consumer.assignment, "its partitions")
        yield
    finally:
        consumer.close()


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers begin with what is left, as they did before."""
    monkeypatch.setattr(clock, "GroupMember", member_with(**{"auto.offset.reset": "earliest"}))


def test_what_is_not_routed_is_not_trimmed_and_what_is_may_go(
    settings: KafkaSettings, typed: Typing, capsys: pytest.CaptureFixture[str]
) -> None:
    def traced(id_: str, *words: str) -> list[str]:
        capsys.readouterr()
        assert run(["log", "trace", id_, "--json", "--kafka", settings.bootstrap_servers, *words]) == 0
        return [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]

    write(settings, "a", "b", "c", "d")
    write(settings, "e", "f")
    assert typed("archive", "orders")[0] == 0
    code, _, said = typed("trim", "orders", "--older-than", "0d", "--yes")
    assert code == 69
    assert "process checkout has read orders.events[" in said
    assert "up to 0 only" in said
    assert "--leave-behind checkout" in said
    with routing(settings) as failures:
        for key in "abcdef":
            await_routed(settings, failures, key)
    code, _, said = typed("trim", "orders", "--older-than", "0d", "--yes")
    assert (code, "6 events deleted" in said) == (0, True), said
    # A trace finds in the archive what topics have lost, and says what is nowhere.
    assert traced("id-a-0") == ["event", "input"]
    assert traced("id-a-0", "--since", "2026-01-01T00:00:00Z") == ["event", "input"]
    assert traced("id-a-0", "--archive", "") == ["missing", "input"]
    write(settings, "later")
    assert typed("archive", "orders")[0] == 0
    assert typed("trim", "orders", "--older-than", "0d", "--yes")[0] == 69
    with routing(settings) as failures:
        await_routed(settings, failures, "later")
    assert sorted(key for key in routed(settings) if key != "@") == [*"abcdef", "later"]


def test_twin_of_the_trim_that_asks_no_process_has_one_miss_an_event(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trimming, "_check_read", lambda self, parts: None)
    careless(monkeypatch)
    write(settings, "missed")
    assert typed("archive", "orders")[0] == 0
    assert typed("trim", "orders", "--older-than", "0d", "--yes")[0] == 0
    write(settings, "missed-not")
    with routing(settings) as failures:
        await_routed(settings, failures, "missed-not")
    assert "missed" not in routed(settings)


def test_a_router_whose_next_events_are_deleted_refuses_until_an_operator_skips_them(
    settings: KafkaSettings, typed: Typing, capsys: pytest.CaptureFixture[str]
) -> None:
    home = partition_of(b"deleted", app.partitions)
    behind = next(key for key in map(str, range(100)) if partition_of(key.encode(), app.partitions) == home)
    write(settings, "deleted")
    lose(settings)
    write(settings, behind)
    with routing(settings) as failures:
        said = await_hole(failures)
    assert "a gap in the log: orders.events[" in said
    assert said.endswith("leftfold log skip checkout")
    assert behind not in routed(settings)
    capsys.readouterr()
    run(["status", "--kafka", settings.bootstrap_servers])
    reported = capsys.readouterr().err
    assert "process checkout stands before the start of a topic: a gap in the log: orders.events[" in reported
    assert "leftfold log skip checkout" in reported
    code, _, said = typed("skip", "checkout")
    assert (code, "these events will never reach the process" in said) == (2, True)
    with member(settings):
        code, _, said = typed("skip", "checkout", "--yes")
        assert (code, "process checkout has 1 router at work; stop what runs them" in said) == (69, True), said
    code, _, said = typed("skip", "checkout", "--yes")
    assert (code, "are lost" in said) == (0, True)
    assert "nothing is lost that routers of checkout should read" in typed("skip", "checkout").err
    with routing(settings) as failures:
        await_routed(settings, failures, behind)
    assert "deleted" not in routed(settings)


def test_a_router_that_never_read_refuses_a_topic_without_its_beginning(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin begins with what is left, and says nothing."""
    ensure(audited, settings)
    write(settings, "lost", *"abcdefxyz")
    lose(settings)
    write(settings, "x", "y", "z")
    with routing(settings, "audit", audited) as failures:
        said = await_hole(failures)
    assert "no longer holds offsets 0 to " in said
    assert "leftfold log skip audit" in said
    assert not [key for key in routed(settings, "audit") if key != "@"]
    careless(monkeypatch)
    with routing(settings, "audit", audited) as failures:
        await_routed(settings, failures, "x", "audit")
    assert "lost" not in routed(settings, "audit")


def test_a_process_refuses_events_of_a_topic_that_was_made_again(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin, at the end, works on: the new topic's first events have offsets that it knows, and count as taken."""
    ensure(alarms.app, settings)
    bell, log, states = "bell", names.events("bells"), names.state("alarm", 1)
    with Trading(settings, alarms.app, parts=("bells", "alarm", "router")) as trading:
        trading.client.send(alarms.Wind(bell=bell, at=datetime(2999, 1, 1, tzinfo=UTC)), timeout=240.0)
        wait_until(lambda: any(r.key == bell.encode() for r in committed(settings, states)), "the timer")
    with ClusterAdmin(settings) as cluster:
        former = cluster.identities([log])[log]
        cluster.delete(log)
        ensure(alarms.app, settings)
        now = cluster.identities([log])[log]
    refused = re.escape(f"has taken events of a topic {log} with id {former}, and the one that is there has id {now}")
    with pytest.raises(ConfigurationError, match=f"^process alarm {refused}"):
        _serve(settings)
    monkeypatch.setattr(KnownLogs, "check_same", lambda *_: None)
    assert _serve(settings)


def _serve(settings: KafkaSettings) -> bool:
    """Whether a worker of the process serves everything; raises what ended it."""
    trading = Trading(settings, alarms.app, parts=("alarm",))
    with trading.client:
        (worker,) = trading.workers.values()
        try:
            while not trading.serves_all():
                worker.step()
            return True
        finally:
            worker.close()
