"""The simulated Kafka does what a real one does: the same scripts run on both, with what they should see."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

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
from tests.simulation.conformance.bench import Outcome, Script
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
AT_ONCE = 6
"""How many scripts run on the real broker at a time."""


def _named(script: Script) -> str:
    name: str = script.__name__
    return name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A running broker, with a further listener for each proxy."""
    proxies: SimpleQueue[tuple[int, int]] = SimpleQueue()
    listeners = []
    for number in range(AT_ONCE):
        front, behind = free_port(), free_port()
        proxies.put((front, behind))
        listeners.append(Listener(name=f"PROXIED{number}", port=behind, advertised_port=front))
    settings = LocalSettings(
        kafka_listeners=tuple(listeners),
        kafka_properties={"group.min.session.timeout.ms": "500", "log.initial.task.delay.ms": "500"},
    )
    data: Path = tmp_path_factory.mktemp("broker")

    def begin_again() -> None:
        kill(data, "kafka")
        restart(data, "kafka")

    with embedded(data, settings=settings, want=frozenset({"kafka"})) as servers:
        yield Place(servers.kafka, proxies, begin_again)


@pytest.fixture(scope="module")
def performed(request: pytest.FixtureRequest, place: Place) -> Mapping[Script, Future[Outcome]]:
    """The selected scripts on the broker, several at once: each mostly waits, with topics and groups of its own."""
    name = test_a_real_broker_does_it_too.__name__
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.originalname == name]
    with warnings.catch_warnings(), ThreadPoolExecutor(AT_ONCE) as pool:
        # They all end within the block: which warnings are errors is set for all threads of a process.
        warnings.filterwarnings("ignore", r"list_groups\(\) is deprecated", DeprecationWarning)
        return {
            script: pool.submit(perform, script, place) for script in (one.callspec.params["script"] for one in items)
        }


@pytest.mark.parametrize("script", [*SCRIPTS, *RARE], ids=_named)
def test_the_simulated_broker_does_what_is_known_of_real_ones(script: Script) -> None:
    for seed in SEEDS:
        seen, expected = simulate(script, seed)
        assert seen == expected, f"seed {seed}"


@pytest.mark.servers
@pytest.mark.parametrize("script", SCRIPTS, ids=_named)
def test_a_real_broker_does_it_too(script: Script, performed: Mapping[Script, Future[Outcome]]) -> None:
    _compare(script, performed[script].result())


@pytest.mark.servers
@pytest.mark.faults
@pytest.mark.parametrize("script", RARE, ids=_named)
@pytest.mark.filterwarnings(r"ignore:list_groups\(\) is deprecated:DeprecationWarning")
def test_a_real_broker_does_what_is_rare_too(script: Script, place: Place) -> None:
    _compare(script, perform(script, place))


def test_there_are_enough_scripts() -> None:
    assert len({_named(script) for script in [*SCRIPTS, *RARE]}) == len([*SCRIPTS, *RARE]) >= 60


def _compare(script: Script, outcome: Outcome) -> None:
    assert outcome.seen == outcome.expected
    assert outcome.seen == simulate(script, 0).seen
