"""`leftfold run`, `status`, `doctor` and `log trim` know the streams that an App names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from leftfold import App, ConfigurationError, Event, LogGap, Reaction, StreamedView, Streaming
from leftfold.cli.main import run
from leftfold.cli.run.run import chosen, parts_of
from leftfold.kafka.administration.groups import Groups
from leftfold.runtime.project import Usage
from tests.cli.shell import Typing, typing_with
from tests.faust.sales import PARTITIONS, Sold, Window, app, by_window, lately, wired
from tests.faust.sales import tills as decider
from tests.faust.tills import Program, Tills, by, running
from tests.servers import Addresses
from tests.waiting import wait_until


class Closed(Event, category="doors", key="door"):
    door: str


def test_the_parts_of_an_app_are_one_for_each_stream_and_more_where_it_keeps_no_view() -> None:
    free = Streaming("mails", events=Sold, work=lambda streams: None)
    whole = App("chain", deciders=[decider], views=[lately], streams=[*app.streams, free])
    parts = {part.name: part.command[-2:] for part in parts_of(whole, 2, (), {})}
    assert {name: command for name, command in parts.items() if "tills" not in name} == {
        "lately": ("agents", "lately"),
        "mails.1": ("agents", "mails"),
        "mails.2": ("agents", "mails"),
    }


def test_a_view_is_run_by_its_stream_and_a_stream_brings_its_views() -> None:
    other = StreamedView("latest", events=Sold, row=Window, key=by_window)
    stream = Streaming("sums", events=Sold, work=wired, views=[other])
    whole = App("chain", deciders=[decider], views=[other], streams=[stream])
    for name in ("latest", "sums"):
        meant = chosen(whole, [name])
        assert (meant.streams, meant.views, meant.deciders) == ((stream,), (other,), ())
    with pytest.raises(Usage, match="stream or view"):
        chosen(whole, ["summs"])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Streaming("Lately", events=Sold, work=wired), "lower case"),
        (lambda: Streaming("lately", events=Closed, work=wired, views=[lately]), "events of tills"),
        (lambda: App("chain", streams=app.streams), "add it to views="),
        (
            lambda: App(
                "chain",
                views=[lately],
                streams=[*app.streams, Streaming("again", events=Sold, work=wired, views=[lately])],
            ),
            "keep one view",
        ),
        (
            lambda: App(
                "chain",
                reactions=[Reaction("mails", events=Sold, act=lambda event, delivery: None)],
                streams=[Streaming("mails", events=Sold, work=wired)],
            ),
            "named 'mails'",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()


@pytest.fixture
def typed(
    addresses: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typing:
    """Types a command in a project of the App."""
    (tmp_path / "pyproject.toml").write_text(
        '[tool.leftfold]\napp = "tests.faust.sales:app"\narchive = "kept"\n', "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", addresses.kafka)
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", addresses.redis)
    return typing_with(capsys)


def test_a_view_that_nothing_here_keeps_is_not_run_for_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = App("chain", deciders=[decider], views=[lately])
    monkeypatch.setattr("leftfold.runtime.project.load_app", lambda *_: chain)
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run(["run", "lately", "--redis", "redis://127.0.0.1:1"]) == 2
    assert "lately: nothing here keeps a view of a stream" in capsys.readouterr().err


NEWEST, REBUILT = "continues with its newest rows; leftfold rebuild lately\n", "is rebuilt by that stream"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["promote", "lately"], NEWEST),
        (["rollback", "lately"], NEWEST),
        (["rebuild", "lately", "--hold"], REBUILT),
        (["rebuild", "lately", "--as-of", "s0@1", "--name", "then"], REBUILT),
        (["rebuild", "lately", "--plan"], REBUILT),
    ],
)
def test_only_what_a_stream_can_do_is_promised(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert run([*words, "--app", "tests.faust.sales:app", "--redis", "redis://127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.servers
def test_status_and_doctor_report_streams_and_trim_waits_for_them(
    tills: Tills,
    addresses: Addresses,
    tmp_path: Path,
    typed: Typing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reported() -> dict[str, Any]:
        rows = typed("status", "--json").rows()
        return next(row for row in rows if row["kind"] == "stream")

    def looked() -> dict[str, Any]:
        rows = typed("doctor", "--json").rows()
        return next(row for row in rows if row["about"] == "streams")

    # A member of an earlier test may still be listed.
    wait_until(lambda: reported()["running"] == 0, lambda: str(reported()))
    row = reported()
    assert (row["name"], row["views"], row["running"], row["lag"]) == ("lately", "lately", 0, None)
    assert "no process is at work on stream lately; start: leftfold run lately" in typed("status")[2]
    assert not looked()["well"]
    assert typed("log", "archive", "tills")[0] == 0
    code, _, said = typed("log", "trim", "tills", "--older-than", "0d", "--yes")
    assert (code, "stream lately has read tills.events[0] up to 0 only" in said) == (69, True), said
    with Program(addresses, tmp_path) as program:
        level = {"lag": 0, "running": 1, "behind": 0.0}
        wait_until(lambda: level.items() <= reported().items(), lambda: f"{reported()} {program.said()}")
        well = {"about": "streams", "well": True, "message": "lately is at work, lag 0"}
        wait_until(lambda: looked() == well, lambda: str(looked()))
        assert program.end() == 0
    tills.write(tills.sales(20))
    assert reported()["lag"] > 0
    assert typed("log", "archive", "tills")[0] == 0
    code, _, said = typed("log", "trim", "tills", "--older-than", "0d", "--yes")
    assert (code, "stream lately has read" in said, "--leave-behind lately" in said) == (69, True, True), said
    monkeypatch.setattr(Groups, "streams", lambda self: {})
    monkeypatch.setattr("leftfold.cli.log.group.load_apps", lambda specs: {"": App("none")})
    code, _, said = typed("log", "trim", "tills", "--older-than", "0d", "--yes")
    assert (code, "events deleted" in said) == (0, True), "the twin asks no stream, and the stream has lost them"
    with running(tills, by(1)) as failures:
        wait_until(lambda: bool(failures), "the loss")
    assert (type(failures[0]), "no longer holds offsets" in str(failures[0])) == (LogGap, True), failures


def committing(tills: Tills, group: str, offset: int) -> Consumer:
    """A consumer that says how far a group is, and may become a member of it."""
    consumer = Consumer({**tills.kafka.librdkafka(), "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("tills.events", p, offset) for p in range(PARTITIONS)], asynchronous=False)
    return consumer


@pytest.mark.servers
def test_of_several_generations_those_at_work_count_else_the_latest(tills: Tills) -> None:
    """A generation that no process keeps any more would hold up every trim for a week."""
    old = committing(tills, "leftfold.chain.often.stream.9-aaaa", 1)
    new = committing(tills, "leftfold.chain.often.stream.10-bbbb", 5)
    try:
        with Groups(tills.kafka) as groups:
            assert groups.listeners("tills.events")["stream often"] == dict.fromkeys(range(PARTITIONS), 5)
            assert groups.listeners("tills.commands").keys().isdisjoint({"stream often"})
            assert groups.streams()["chain", "often"].running == 0
            old.subscribe(["tills.events"])
            wait_until(lambda: old.poll(0.1) is None and old.assignment(), "the member")
            found = groups.streams()["chain", "often"]
            assert found.current == {"leftfold.chain.often.stream.9-aaaa": 1}
            assert groups.listeners("tills.events")["stream often"] == dict.fromkeys(range(PARTITIONS), 1)
    finally:
        old.close()
        new.close()
