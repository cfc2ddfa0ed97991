"""An event that kills its process is parked behind its third death, and no other event with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leftfold.engine.reactions.deadline_executor import DEATHS
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import embedded
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from tests.domains.visits import Paid
from tests.reactions.deadly import KILLER, NAME, TWIN, app
from tests.reactions.reacting import PARTITIONS, done_up_to, write
from tests.reactions.receiver import Receiver, receiving
from tests.reactions.shell import Shell
from tests.servers import patient
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

INNOCENT = ["a", "b", "c", "d"]
GROUP = names.reacting(app.name, NAME)


class Scene:
    """A run of the reaction at events of which one kills it."""

    def __init__(self, settings: KafkaSettings, receiver: Receiver, shell: Shell) -> None:
        self.settings, self.receiver, self.shell = settings, receiver, shell

    def parked(self) -> dict[str, str]:
        """Why visits are parked."""
        found = committed(self.settings, names.dead(NAME))
        return {(r.key or b"").decode(): header(r.headers, "dead_reason").decode() for r in found}

    def is_through(self) -> bool:
        """Whether the group has come to the end of the log."""
        ends = {r.partition: r.offset + 1 for r in committed(self.settings, names.events("visits"))}
        done = done_up_to(self.settings, GROUP)
        return all(done[partition] >= end for partition, end in ends.items())

    def deaths(self) -> int:
        """How many processes the killer has begun in."""
        return self.receiver.posts[f"/{KILLER}"]

    def reported(self) -> str:
        """How it stands."""
        return f"{self.receiver.posts} {self.parked()} {done_up_to(self.settings, GROUP)} {self.shell.said()}"


@contextmanager
def scene_of(place: Path, twin: str) -> Iterator[Scene]:
    """Servers of its own: what a twin leaves behind no other test may find."""
    with embedded(place / "kafka", want=frozenset({"kafka"})) as servers, receiving() as receiver:
        settings = patient(servers.kafka)
        ensure(app, settings)
        write(settings, *(Paid(visit=visit) for visit in (*INNOCENT, KILLER)), Paid(visit=KILLER, number=2))
        shell = Shell("tests.reactions.deadly:app", settings, place, {"TESTS_HOOKS_URL": receiver.url, TWIN: twin})
        with shell.running(NAME):
            yield Scene(settings, receiver, shell)


def test_innocents_are_in_both_partitions() -> None:
    assert {partition_of(visit.encode(), PARTITIONS) for visit in INNOCENT} == set(range(PARTITIONS))


def test_what_kills_its_process_each_time_is_parked_and_nothing_else(tmp_path: Path) -> None:
    with scene_of(tmp_path, "") as scene:
        wait_until(scene.is_through, scene.reported, 400.0)
        parked = committed(scene.settings, names.dead(NAME))
        assert [(record.key or b"").decode() for record in parked] == [KILLER, KILLER], "both events of that visit"
        for record in parked:
            reason = header(record.headers, "dead_reason")
            assert reason == b"InfrastructureError: the process died 3 times in a row while it acted"
            assert header(record.headers, "attempts") == str(DEATHS).encode()
        assert all(scene.receiver.posts[f"/{visit}"] for visit in INNOCENT)
        assert scene.deaths() <= 2 * (DEATHS + 1), "one before it was noted, and three of its own"


@pytest.mark.parametrize("twin", ["forgetful", "together"])
def test_without_memory_it_kills_for_ever_and_without_solitude_innocents_are_parked(tmp_path: Path, twin: str) -> None:
    with scene_of(tmp_path, twin) as scene:
        if twin == "forgetful":
            wait_until(lambda: scene.deaths() > 2 * (DEATHS + 1), scene.reported, 400.0)
            assert scene.parked() == {}
        else:
            wait_until(lambda: set(scene.parked()) & set(INNOCENT) != set(), scene.reported, 400.0)
