"""A project on a real Kafka and a Redis cluster: commands, waiting reads, a node's death, rebuilds on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, Typed
from tests.redis.cluster_set import ClusterSet
from tests.servers import Addresses
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]


class Project:
    """What `leftfold new shop` writes, and where its servers are."""

    def __init__(self, place: Path, kafka: str, redis: str) -> None:
        assert Shell(place)("new", "shop").code == 0
        self.shell, self._kafka, self._redis = Shell(place / "shop"), ("--kafka", kafka), ("--redis", redis)

    def send(self, quantity: int) -> str:
        """Adds so much tea and returns the position of that."""
        body = {"cart_id": "c-1", "product_id": f"tea {quantity}", "quantity": quantity, "price": "1.00"}
        sent = self.shell("send", "AddItem", json.dumps(body), *self._kafka)
        assert sent.code == 0, sent.err
        return sent.out.rsplit("position ", 1)[1].strip()

    def total(self, position: str) -> str:
        """The total of the cart, once it is that far."""
        told = self.shell("get", "cart_summary", "c-1", "--after", position, "--timeout", "20", "--json", *self._redis)
        assert told.code == 0, told.err
        found: str = told.rows()[0]["row"]["total"]
        return found

    def rebuild(self, *options: str) -> Typed:
        """Rebuilds every view."""
        return self.shell("rebuild", "--json", *options, *self._kafka, *self._redis)

    @property
    def run(self) -> list[str]:
        """What starts everything."""
        return ["run", *self._kafka, *self._redis]


@pytest.fixture
def project(servers: Addresses, cluster: ClusterSet, tmp_path: Path) -> Iterator[Project]:
    """A project whose worker and projector run."""
    project = Project(tmp_path, servers.kafka, cluster.settings.url)
    process = project.shell.start(project.run)
    wait_until(lambda: all(f'"{what}"' in project.shell.said() for what in ("serving", "following")), "both to work")
    yield project
    process.terminate()
    process.wait(240.0)


def test_a_project_lives_on_a_cluster(project: Project, cluster: ClusterSet) -> None:
    assert project.total(project.send(2)) == "2.00"
    told = project.rebuild("--engine", "local")
    assert told.code == 0, told.err
    assert [(row["agreement"], row["swapped"]) for row in told.rows()] == [("equal", True)] * 2
    victim = cluster.owner(0)
    replica = cluster.replica_of(victim)
    cluster.wait_replicated(victim)
    victim.kill()
    position = project.send(3)
    cluster.wait_promoted(replica)
    assert project.total(position) == "5.00"
    cluster.bring_back()
    told = project.rebuild("--master", "local[2]")
    assert told.code == 0, told.err
    assert [(row["agreement"], row["swapped"]) for row in told.rows()] == [("equal", True)] * 2
    assert project.total(project.send(4)) == "9.00"
