"""All services of the chain at once on a real broker, with the real data, and killed amid: at the end they agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from events.baskets import BasketPaid, BasketReopened
from leftfold import connect
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.local import LocalSettings, Servers, embedded
from leftfold.testing import fold
from tests.process.shopping import Log, Shopping, send
from tests.reactions.shell import Shell
from tests.reference.chain import chain
from tests.reference.sums import disagreements
from tests.servers import patient
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]


@contextmanager
def running(place: Path) -> Iterator[tuple[psutil.Process, Servers]]:
    """`leftfold run` with all services, on servers of its own."""
    short = LocalSettings(kafka_properties={"group.min.session.timeout.ms": "500"})
    with embedded(place / "servers", settings=short) as servers:
        settings = patient(servers.kafka)
        ensure(chain, settings)
        shell = Shell("tests.reference.chain:chain", settings, place, {"LEFTFOLD_REDIS_URL": servers.redis})
        with shell.running() as run:
            yield psutil.Process(run.pid), servers


def kill(run: psutil.Process, name: str) -> None:
    """SIGKILL to the part of a name."""
    wait_until(lambda: bool(_parts(run, name)), f"{name} to run")
    for part in _parts(run, name):
        part.kill()


def _parts(run: psutil.Process, name: str) -> list[psutil.Process]:
    found = []
    for part in run.children():
        try:
            found += [part] if f"--name={name}" in part.cmdline() else []
        except psutil.NoSuchProcess:
            continue
    return found


def settle(log: Log, client: KafkaClient, checkouts: int) -> None:
    """Waits until every checkout has its end; meanwhile a bank clears some checks."""

    def ended() -> bool:
        log.look()
        send(client, log.cleared())
        return len(log.ended) == checkouts

    wait_until(ended, lambda: f"{checkouts} ends: {len(log.ended)}; {disagreements(log.events)[:5]}", 240.0)


def assert_views_tell_all(servers: Servers, log: Log) -> None:
    """Each view in Redis holds what its fold makes of all events, service by service."""
    events = [event for found in log.events.values() for event in found]
    with connect(chain, kafka=patient(servers.kafka), redis=servers.redis) as lf:
        for view in chain.views:
            lf.views[view].wait_reached(log.position, timeout=240.0)
            assert dict(lf.views[view].items()) == fold(view, *events), view.name


def test_the_services_agree_though_workers_routers_and_projectors_are_killed(tmp_path: Path) -> None:
    shopping = Shopping.of(baskets=100, patience=timedelta(seconds=30))
    with running(tmp_path) as (run, servers):
        settings = patient(servers.kafka)
        with KafkaClient("chain", settings) as client, closing(Log(chain, settings)) as log:
            send(client, [(f"stock-{n}", one) for n, one in enumerate(shopping.deliveries)])
            half = len(shopping.commands) // 2
            send(client, shopping.commands[:half])
            for part in ("inventory", "checkout.router", "checkout", "projector"):
                kill(run, part)
            send(client, shopping.commands[half:])
            settle(log, client, shopping.checkouts)
            wait_until(lambda: not disagreements(log.look()), lambda: f"the sums: {disagreements(log.events)[:9]}")
            assert_views_tell_all(servers, log)
    ends = log.events["baskets"]
    why = {event.reason.split()[0] for event in ends if isinstance(event, BasketReopened)}
    assert {"not", "household"} <= why, "some were late, and some had no points"
    assert any("are wanted" in event.reason for event in ends if isinstance(event, BasketReopened))
    assert any(isinstance(event, BasketPaid) for event in ends)
