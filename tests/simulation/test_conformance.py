"""The simulated Kafka does what a real one does: the same scripts run on both, with what they should see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leftfold.local import Listener, LocalSettings, embedded, kill, restart
from tests.free_ports import free_port
from tests.simulation.conformance import (
    administering,
    fencing,
    groups,
    offsets,
    producing,
    reading,
    restarting,
    transactions,
)
from tests.simulation.conformance.bench import Script
from tests.simulation.conformance.embedded import Place, perform
from tests.simulation.conformance.simulated import simulate

SCRIPTS: list[Script] = [
    *transactions.SCRIPTS,
    *fencing.SCRIPTS,
    *offsets.SCRIPTS,
    *groups.SCRIPTS,
    *reading.SCRIPTS,
    *producing.SCRIPTS,
    *administering.SCRIPTS,
]
RARE: list[Script] = [*administering.SLOW, *restarting.SCRIPTS]
"""Scripts that need a while on a real broker, or kill it."""
SEEDS = range(5)


def _named(script: Script) -> str:
    name: str = script.__name__
    return name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A running broker with a second listener, which a script's own proxy is advertised for."""
    behind, front = free_port(), free_port()
    settings = LocalSettings(
        kafka_listeners=(Listener(name="PROXIED", port=behind, advertised_port=front),),
        kafka_properties={"group.min.session.timeout.ms": "500", "log.initial.task.delay.ms": "500"},
    )
    data: Path = tmp_path_factory.mktemp("broker")

    def begin_again() -> None:
        kill(data, "kafka")
        restart(data, "kafka")

    with embedded(data, settings=settings, want=frozenset({"kafka"})) as servers:
        yield Place(servers.kafka, behind, front, begin_again)


@pytest.mark.parametrize("script", [*SCRIPTS, *RARE], ids=_named)
def test_the_simulated_broker_does_what_is_known_of_real_ones(script: Script) -> None:
    for seed in SEEDS:
        seen, expected = simulate(script, seed)
        assert seen == expected, f"seed {seed}"


@pytest.mark.servers
@pytest.mark.parametrize("script", SCRIPTS, ids=_named)
def test_a_real_broker_does_it_too(script: Script, place: Place) -> None:
    _compare(script, place)


@pytest.mark.servers
@pytest.mark.faults
@pytest.mark.parametrize("script", RARE, ids=_named)
def test_a_real_broker_does_what_is_rare_too(script: Script, place: Place) -> None:
    _compare(script, place)


def test_there_are_enough_scripts() -> None:
    assert len({_named(script) for script in [*SCRIPTS, *RARE]}) == len([*SCRIPTS, *RARE]) >= 60


def _compare(script: Script, place: Place) -> None:
    seen, expected = perform(script, place)
    assert seen == expected
    assert seen == simulate(script, 0).seen
