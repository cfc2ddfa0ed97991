"""Views are rebuilt, versions raised and Redis lost: no reaction acts again on what it has acted on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from leftfold.client import Views
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.message_codec import header
from leftfold.redis import RedisViewStore
from tests.domains.visits import Pay
from tests.reactions.posting import PATH, VERSIONS, app, total_of
from tests.reactions.receiver import Receiver, receiving
from tests.reactions.shell import Shell
from tests.redis.server import RedisServer
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

VISITS = [f"v{number}" for number in range(6)]


class Scene:
    """A shop at work, whose parts are stopped and started in other versions."""

    def __init__(self, settings: KafkaSettings, redis: RedisServer, receiver: Receiver, place: Path) -> None:
        self.settings, self.redis, self.receiver = settings, redis, receiver
        self.versions: dict[str, int] = {}
        self.paid = 0
        servers = {"TESTS_HOOKS_URL": receiver.url, "LEFTFOLD_REDIS_URL": redis.settings.url}
        self.shell = Shell("tests.reactions.posting:app", settings, place, servers)
        self._client = KafkaClient("posting", settings)
        self._running = ExitStack()

    def start(self, **versions: int) -> None:
        """Runs everything, in other versions than before."""
        self.stop()
        self.versions |= versions
        self.shell.set(VERSIONS, json.dumps(self.versions))
        self._running.enter_context(self.shell.running())

    def stop(self) -> None:
        """Ends everything in order."""
        self._running.close()

    def close(self) -> None:
        """Ends the client, too."""
        self.stop()
        self._client.close()

    def pay(self) -> None:
        """Everybody pays once more; each time it must be the next payment of that visit."""
        self.paid += 1
        for visit in VISITS:
            self._client.send(Pay(visit=visit), timeout=240.0)

    def posted(self) -> list[str]:
        """The ids of the events that are to be posted."""
        records = committed(self.settings, "visits.events")
        return [
            header(r.headers, "ce_id").decode() for r in records if header(r.headers, "ce_type") == b"visits.Paid.v1"
        ]

    def await_all(self) -> None:
        """Waits until all that was paid is in the view, and acted on as far as the log goes."""
        wait_until(
            lambda: len(self.posted()) == self.paid * len(VISITS),
            lambda: f"{self.paid} payments of each visit: {len(self.posted())} {self.shell.said()}",
        )
        with ClusterAdmin(self.settings) as cluster:
            ends = cluster.ends(["visits.events"])
        version = self.versions.get("view", 1)
        store = RedisViewStore(self.redis.settings)
        try:
            reader = Views(store)[total_of(version)]
            wait_until(lambda: store.registry("totals").live_of(total_of(version).hash) is not None, "the view")
            rows = [reader.get(visit, after=ends, timeout=240.0) for visit in VISITS]
        finally:
            store.close()
        assert [row and (row.paid, row.weighed) for row in rows] == [(self.paid, self.paid * version)] * len(VISITS)
        wait_until(self.is_through, lambda: f"the reaction: {self.shell.said()}")

    def is_through(self) -> bool:
        """Whether the group of the reaction is at the end of the log: a new beginning would have been acted on."""
        return all(row["lag"] == 0 for row in self.shell.tell("status")[1] if row["kind"] == "reaction")

    def assert_each_posted(self) -> None:
        """Every event has reached the receiver once, under a key of its own."""
        assert sorted(self.receiver.effects[PATH].values()) == sorted(self.posted())
        assert self.receiver.posts[PATH] == len(self.posted())


@pytest.fixture(scope="module")
def scene(settings: KafkaSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    ensure(app, settings)
    with (
        receiving() as receiver,
        RedisServer(tmp_path_factory.mktemp("redis") / "data") as redis,
        closing(Scene(settings, redis, receiver, tmp_path_factory.mktemp("run"))) as scene,
    ):
        scene.start()
        scene.pay()
        scene.await_all()
        scene.assert_each_posted()
        yield scene


def rebuild(scene: Scene) -> None:
    assert scene.shell.tell("rebuild", "totals")[0] == 0, scene.shell.said()


def set_back(scene: Scene) -> None:
    saved = scene.redis.saved()
    scene.pay()
    scene.await_all()
    scene.redis.kill()
    scene.redis.restore(saved)
    scene.redis.start()


def lose(scene: Scene) -> None:
    with scene.redis.client() as client:
        client.flushall()


CHANGES: dict[str, Callable[[Scene], None]] = {
    "rebuild": rebuild,
    "view version": lambda scene: scene.start(view=2),
    "decider version": lambda scene: scene.start(decider=2),
    "redis set back": set_back,
    "redis lost": lose,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_folded_again_is_not_acted_on_again(scene: Scene, change: Callable[[Scene], None]) -> None:
    change(scene)
    scene.await_all()
    scene.assert_each_posted()
    scene.pay()
    scene.await_all()
    scene.assert_each_posted()


def test_the_raised_version_was_at_work(scene: Scene) -> None:
    """Its state topic holds all streams, folded from the log."""
    records = committed(scene.settings, "visits.state.v2")
    assert {(record.key or b"").decode() for record in records} >= set(VISITS)
