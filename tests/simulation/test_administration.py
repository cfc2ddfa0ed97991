"""What operators do about states and dead letters, on simulated brokers: ended in the middle, and typed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from leftfold import App, Command, Decider, Event
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import write_record, write_records
from leftfold.kafka.administration.states import forget_states
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.ports.outgoing import Outgoing, dead_letter
from leftfold.ports.protocols import RawRecord
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
