"""What operators do about states and dead letters, on simulated brokers: ended in the middle, and typed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from leftfold import App, Command, Decider, Event
from leftfold.engine.progress import RebuildProgress
from leftfold.errors import LeftfoldError
from leftfold.http.console.console_state import Console, Visitor
from leftfold.http.console.dead_letters_page import _Letters
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import write_record, write_records
from leftfold.kafka.administration.states import forget_states
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.ports.outgoing import Letter, Outgoing, dead_letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.dead_letters import AllDeadLetters
from leftfold.runtime.project import Usage
from leftfold.testing.simulation.deployment import SETTINGS
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.kafka.admin import AdminClient
from leftfold.testing.simulation.takeover import taken_over
from tests.cli.shell import typing_with


class Placed(Event, category="orders", key="order"):
    order: str


class Place(Command, category="orders", key="order"):
    order: str


def app(version: int = 1) -> App:
    orders: Decider[Any, Any, Any] = Decider(
        "orders",
        commands=Place,
        events=Placed,
        state=str,
        initial_state="",
        decide=lambda command, state: [Placed(order=command.order)],
        evolve=lambda state, event: state,
        version=version,
    )
    return App("shop", partitions=1, deciders=[orders])


@pytest.fixture
def world() -> Iterator[SimulatedWorld]:
    found = SimulatedWorld(1, 1)
    with taken_over(), found.activated():
        yield found
        found.close()


def done(world: SimulatedWorld, work: Callable[[], Any]) -> Any:
    """What an operator's work comes to."""
    found: list[Any] = []
    task = world.start("operator", lambda: found.append(work()))
    world.run(lambda: task.is_done, 600.0)
    if task.error is not None:
        raise task.error
    (result,) = found
    return result


@pytest.mark.parametrize(
    ("versions", "version", "last"), [((10, 9, 8), 10, "v10"), ((10, 9), 11, "v10"), ((1, 2), 1, "v1")]
)
def test_states_are_deleted_in_an_order_that_keeps_the_offset_of_commands(
    world: SimulatedWorld, versions: tuple[int, ...], version: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    delete = AdminClient.delete_topics

    def noted(self: AdminClient, topics: list[str], *args: Any, **named: Any) -> Any:
        deleted.extend(topics)
        return delete(self, topics, *args, **named)

    monkeypatch.setattr(AdminClient, "delete_topics", noted)
    for one in versions:
        done(world, lambda: ensure(app(one), SETTINGS))  # noqa: B023  # called at once
    done(world, lambda: forget_states(app(version), "orders", SETTINGS, partial(KafkaLogReader, SETTINGS)))
    assert sorted(deleted) == sorted(f"orders.state.v{one}" for one in versions)
    assert deleted[-1] == f"orders.state.{last}"


def bury(offset: int, size: int = 2) -> Outgoing:
    """A letter about a command at an offset; by reference if it was large."""
    record = RawRecord("orders.commands", 0, offset, b"o-1", b" " * size, [("ce_id", b"c%d" % offset)], 1)
    return dead_letter(record, "why", 0, 1_000)


def page_of(world: SimulatedWorld, *letters: Outgoing) -> tuple[_Letters, list[Letter]]:
    """The page of the console, with letters that it has to show."""
    for letter in letters:
        done(world, lambda: write_record(SETTINGS, "orders.dead", letter))  # noqa: B023  # called at once
    servers = SETTINGS.bootstrap_servers, "redis://127.0.0.1:1", None
    console = Console({"shop:app": app()}, {}, servers, may_act=lambda who: True)
    page = _Letters(Visitor(console, may_act=True), "", "", with_handled=False)
    found = done(world, page._read)[0].letters
    return page, [letter for letter, _ in found]


def test_neither_a_survey_nor_a_page_holds_the_values_of_a_flood_of_letters(world: SimulatedWorld) -> None:
    done(world, lambda: ensure(app(), SETTINGS))
    _, letters = page_of(world, bury(5), bury(6))
    surveyed = done(world, lambda: ClusterState(SETTINGS).letters("orders.dead"))
    assert [letter.record for letter in letters] == surveyed
    assert [(record.offset, record.value) for record in surveyed] == [(0, None), (1, None)]
    kept = done(world, lambda: list(AllDeadLetters(SETTINGS.bootstrap_servers).letters("orders")))
    assert [letter.record.value for letter in kept] == [b"  ", b"  "]


def test_a_letter_whose_command_is_lost_is_opened_on_its_page_and_left_out_of_its_group(world: SimulatedWorld) -> None:
    done(world, lambda: ensure(app(), SETTINGS))
    page, letters = page_of(world, bury(5), bury(9, 2_000))
    page._letter = "orders.dead[0]@1"
    _, opened = done(world, page._read)
    assert opened is not None
    assert (opened[0].place, opened[1]) == (letters[1].place, b"")
    assert opened[2].startswith(
        "It was too large to copy, and its original is lost: orders.commands[0]@9: no committed"
    )
    act = page._resend(letters)
    outcome = done(world, lambda: act.do("anna", "it is repaired", lambda progress: None))
    assert outcome.startswith("1 letter sent again, the last one under the id ")
    assert "; 1 letter left out: orders.dead[0]@1 was too large to copy" in outcome
    alone = page._resend(letters[1:])
    with pytest.raises(Usage, match=r"orders\.dead\[0\]@1 was too large to copy"):
        done(world, lambda: alone.do("anna", "it is repaired", lambda progress: None))


def test_a_letter_whose_command_is_lost_is_shown_in_a_shell(
    world: SimulatedWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one whose topic is deleted."""
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", SETTINGS.bootstrap_servers)
    typed = typing_with(capsys)
    done(world, lambda: ensure(app(), SETTINGS))
    page, _ = page_of(world, bury(9, 2_000), bury(5))
    lost = "it was too large to copy, and its original is lost: orders.commands[0]@9: no committed record"
    for _ in range(2):
        shown = done(world, lambda: typed("dead", "show", "orders.dead[0]@0")).ok()
        assert re.search(r"^reason +why$", shown.out, re.MULTILINE), shown.out
        assert lost in shown.out
        (found,) = done(world, lambda: typed("dead", "show", "orders.dead[0]@0", "--json")).ok().rows()
        assert (found["bytes"], found["lost"].startswith(lost), found["headers"]["dead_reason"]) == ("", True, "why")
        assert done(world, page._read)[0].letters
        burials = done(world, lambda: AllDeadLetters(SETTINGS.bootstrap_servers))
        sendable, _ = done(world, lambda: burials.sendable(["orders"]))  # noqa: B023  # called at once
        assert [letter.record.offset for letter in sendable] == [1]
        if "orders.commands" in done(world, lambda: ClusterAdmin(SETTINGS).topics()):
            done(world, lambda: ClusterAdmin(SETTINGS).delete("orders.commands"))


def test_an_error_that_was_not_foreseen_is_counted_from_too(world: SimulatedWorld) -> None:
    done(world, lambda: ensure(app(), SETTINGS))
    page, letters = page_of(world, bury(5), bury(6))

    def fail(progress: RebuildProgress) -> None:
        raise OSError("no space")

    act = page._discard(letters)
    with pytest.raises(LeftfoldError, match="^1 of 2 letters discarded, then: OSError: no space"):
        done(world, lambda: act.do("anna", "it is no use", fail))


@pytest.mark.parametrize("word", ["sent again", "discarded"])
def test_letters_that_were_handled_before_an_error_are_counted_and_the_list_is_read_again(
    world: SimulatedWorld, word: str
) -> None:
    done(world, lambda: ensure(app(), SETTINGS))
    page, letters = page_of(world, bury(5), bury(6))
    act = page._resend(letters) if word == "sent again" else page._discard(letters)
    assert act.is_long, "such an act is never said to be not done"

    def interrupt(progress: RebuildProgress) -> None:
        burials = AllDeadLetters(SETTINGS.bootstrap_servers)
        for _ in burials.discard(letters[1:], "ben: it is no use"):
            pass

    with pytest.raises(LeftfoldError, match=f"^1 of 2 letters {word}, then: another operator is at work"):
        done(world, lambda: act.do("anna", "it is repaired", interrupt))
    assert [letter.handled for letter, _ in done(world, page._read)[0].letters] == [word, "discarded"]


def test_a_letter_whose_command_is_lost_keeps_no_other_from_being_sent_again(
    world: SimulatedWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", SETTINGS.bootstrap_servers)
    typed = typing_with(capsys)

    def prepare() -> AllDeadLetters:
        ensure(app(), SETTINGS)
        for value in (b"lost", b"kept"):
            write_record(SETTINGS, "orders.commands", Outgoing(0, b"o-1", value, ()))
        letters = [bury(5), bury(0, 2_000), bury(1, 2_000), bury(6)]
        write_records(SETTINGS, "orders.dead", letters, doing="burying")
        with ClusterAdmin(SETTINGS) as cluster:
            cluster.delete_records("orders.commands", {0: 1})
        return AllDeadLetters(SETTINGS.bootstrap_servers)

    burials = done(world, prepare)
    found, refused = done(world, lambda: burials.sendable(["orders"]))
    assert [letter.record.offset for letter in found] == [0, 2, 3]
    (why,) = refused
    assert why.startswith("orders.dead[0]@1 was too large to copy, and its original is lost (orders.commands[0]@0: ")
    assert why.endswith("leftfold dead discard 'orders.dead[0]@1' --reason WHY")
    with pytest.raises(Usage, match=r"orders\.dead\[0\]@1 was too large to copy"):
        done(world, lambda: burials.sendable(["orders.dead[0]@1"]))
    result = done(world, lambda: typed("dead", "resend", "orders", "--yes")).ok()
    assert [line.partition(" is sent again")[0] for line in result.out.splitlines()] == [
        f"orders.dead[0]@{offset}" for offset in (0, 2, 3)
    ]
    assert result.err.splitlines() == [why]
    result = done(world, lambda: typed("dead", "resend", "orders", "--yes")).ok()
    assert result.err.splitlines() == [why, "no dead letter waits there that can be sent again"]
