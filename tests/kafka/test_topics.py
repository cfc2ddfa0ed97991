"""Making and checking the topics of an App on a real broker."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from leftfold import App, Event, FoldView, Reaction
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure, make, topics_of
from leftfold.kafka.settings import KafkaSettings
from leftfold.runtime.lifecycle import refuse_foreign_workers
from tests.kafka.conftest import MakeTopic
from tests.process.alarms import Rang, alarm_called, bells
from tests.waiting import wait_until
from tests.worker.bank import Account, bank

pytestmark = pytest.mark.servers


def new_app(category: str, partitions: int = 3) -> App:
    """An App that owns a category of its own."""
    return bank(category, version=2, partitions=partitions).app


@pytest.fixture
def category() -> str:
    """A category of this test alone."""
    return f"c{uuid4().hex}"


HOUR = 3_600_000
DATED = {"message.timestamp.type": "LogAppendTime"}
SMALL = {"segment.ms": "600000", "segment.bytes": "67108864"}
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
SHORT = {"cleanup.policy": "delete", "retention.ms": "600000", **SMALL}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(HOUR),
    "delete.retention.ms": str(24 * HOUR),
    **SMALL,
}
DESIGN = {
    "app.replies": (3, SHORT),
    "bells.commands": (3, {"cleanup.policy": "delete", "retention.ms": str(7 * 24 * HOUR), **DATED}),
    "bells.events": (3, KEPT | DATED),
    "bells.state.v1": (3, COMPACTED),
    "bells.dead": (3, KEPT | {"retention.ms": str(90 * 24 * HOUR)}),
    "alarm.commands": (3, KEPT | DATED),
    "alarm.state.v1": (3, COMPACTED),
    "alarm.dead": (3, KEPT),
    "alarm.time": (1, SHORT | DATED),
    "herald.dead": (3, KEPT),
    "herald.begun": (1, COMPACTED),
}
"""The topics of the specification: partitions and settings."""


def designed() -> App:
    """An App with one of each that has topics."""
    herald = Reaction("herald", events=Rang, act=lambda event, delivery: None)
    return App("app", partitions=3, deciders=[bells], processes=[alarm_called("alarm")], reactions=[herald])


def test_the_topics_of_an_app_are_made_as_designed(kafka: KafkaSettings, cluster: ClusterAdmin) -> None:
    assert ensure(designed(), kafka) == {topic: partitions for topic, (partitions, _) in DESIGN.items()}
    configs = cluster.configs(DESIGN)
    wanted = {topic: config | {"compression.type": "uncompressed"} for topic, (_, config) in DESIGN.items()}
    assert {topic: {name: configs[topic][name] for name in config} for topic, config in wanted.items()} == wanted
    room = cluster.max_batch_bytes(["bells.events", "bells.dead"])
    assert room == int(configs["bells.events"]["max.message.bytes"]) > 1_000_000


class Making(ClusterAdmin):
    """Keeps what would be made: one broker holds one replica only."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self.made: list[tuple[int, str | None]] = []

    def create(self, topic: str, partitions: int, replication: int, config: Mapping[str, str]) -> bool:
        self.made.append((replication, config.get("min.insync.replicas")))
        return True


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, None), (2, None), (3, "2")])
def test_of_three_replicas_two_have_every_write(kafka: KafkaSettings, replicas: int, in_sync: str | None) -> None:
    with Making(kafka.model_copy(update={"replication_factor": replicas})) as cluster:
        make(cluster, topics_of(designed()))
    assert cluster.made == [(replicas, in_sync)] * len(DESIGN)


def test_several_creators_find_the_same_topics(kafka: KafkaSettings, category: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(lambda _: ensure(new_app(category), kafka), range(4))
    assert [*others, ensure(new_app(category), kafka)] == [first] * 4


def test_another_partition_count_is_refused_with_both_counts(kafka: KafkaSettings, category: str) -> None:
    ensure(new_app(category, 3), kafka)
    with pytest.raises(ConfigurationError, match=r"has 3 partitions, but .* says partitions=5.*Say partitions=3") as e:
        ensure(new_app(category, 5), kafka)
    assert e.value.exit_code == 78


@pytest.mark.parametrize(
    ("kind", "config", "reported"),
    [
        ("events", {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}, "has .* and must have"),
        ("events", {"retention.ms": "604800000", "message.timestamp.type": "LogAppendTime"}, "has .* and must have"),
        ("events", {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}, "has .* and must have"),
        ("state.v2", {"cleanup.policy": "delete"}, "has .* and must have"),
        ("commands", {"retention.ms": "60000"}, "has retention.ms=60000: commands could go"),
        ("commands", {"retention.bytes": "1000000"}, "has retention.bytes=1000000: commands could go"),
        ("commands", {"cleanup.policy": "compact"}, "has cleanup.policy=compact: commands could go"),
    ],
)
def test_a_topic_that_would_lose_or_misdate_records_is_refused(
    kafka: KafkaSettings, cluster: ClusterAdmin, category: str, kind: str, config: dict[str, str], reported: str
) -> None:
    cluster.create(f"{category}.{kind}", 3, 1, config)
    with pytest.raises(ConfigurationError, match=rf"{category}\.{kind} {reported}"):
        ensure(new_app(category), kafka)


def test_commands_of_a_topic_of_an_older_version_are_dated_by_the_broker_from_now_on(
    kafka: KafkaSettings, cluster: ClusterAdmin, category: str
) -> None:
    topic, older = f"{category}.commands", {"retention.ms": "100000000", "message.timestamp.type": "CreateTime"}
    cluster.create(topic, 3, 1, older)
    ensure(new_app(category), kafka)
    wait_until(lambda: cluster.configs([topic])[topic]["message.timestamp.type"] == "LogAppendTime", "the setting")
    assert cluster.configs([topic])[topic]["retention.ms"] == "100000000", "what an operator chose stays"


def test_dead_commands_stay_for_a_day_at_least(kafka: KafkaSettings, cluster: ClusterAdmin, category: str) -> None:
    cluster.create(f"{category}.dead", 3, 1, {"retention.ms": "1000"})
    with pytest.raises(ConfigurationError, match=rf"{category}\.dead has retention.ms=1000: commands could go before"):
        ensure(new_app(category), kafka)
    with pytest.raises(ConfigurationError, match="dead_retention=.* must be a day at least"):
        App("hasty", dead_retention=timedelta(hours=1))
    dead = f"{category}.dead"
    cluster.set_configs(dead, {"retention.ms": "-1"})
    wait_until(lambda: cluster.configs([dead])[dead]["retention.ms"] == "-1", "the setting")
    ensure(new_app(category), kafka)
    assert cluster.configs([dead])[dead]["retention.ms"] == "-1", "what is there stays"


def test_a_category_that_is_only_read_must_be_there(kafka: KafkaSettings, category: str) -> None:
    class Happened(Event, category=category, key="id"):
        id: str

    view = FoldView("accounts", events=Happened, row=Account, evolve=lambda row, event: Account())
    reading = App(f"reader-{category}", views=[view])
    with pytest.raises(InfrastructureError, match=rf"reads {category}\.events, which no App has made yet"):
        ensure(reading, kafka)
    ensure(new_app(category, 5), kafka)
    assert ensure(reading, kafka)[f"{category}.events"] == 5


def test_topics_that_are_not_there_are_left_out(kafka: KafkaSettings, cluster: ClusterAdmin, category: str) -> None:
    ensure(new_app(category), kafka)
    assert cluster.partition_counts([f"{category}.events", "nothing"]) == {f"{category}.events": 3}
    assert cluster.partition_counts([]) == {}
    assert cluster.topics()[f"{category}.dead"] == 3
    assert cluster.brokers() == 1


def test_a_topic_that_is_made_again_has_another_id(cluster: ClusterAdmin, make_topic: MakeTopic) -> None:
    topic = make_topic()
    first = cluster.identities([topic, "nothing"])
    assert first == cluster.identities([topic]) == {topic: cluster.identity(topic)}
    cluster.delete(topic)
    assert cluster.identities([topic]) == {}
    cluster.create(topic, 1, 1, {})
    wait_until(lambda: bool(cluster.identities([topic])), f"topic {topic}")
    assert cluster.identity(topic) != first[topic]


def test_workers_of_a_category_are_counted_and_those_of_another_app_are_refused(
    kafka: KafkaSettings, cluster: ClusterAdmin, category: str
) -> None:
    app = new_app(category)
    ensure(app, kafka)
    assert cluster.owners(category) == {}
    group = f"leftfold.any-app.{category}"
    consumer = Consumer({**kafka.librdkafka(), "group.id": group})
    consumer.subscribe([f"{category}.commands"])
    wait_until(lambda: consumer.poll(0.05) is None and cluster.owners(category) == {group: 1}, "the member")
    with pytest.raises(ConfigurationError, match=f"{category} is served by the group {group} too"):
        refuse_foreign_workers(app, kafka)
    refuse_foreign_workers(App("any-app", partitions=3, deciders=app.deciders), kafka)
    consumer.close()
    wait_until(lambda: cluster.owners(category).get(group, 0) == 0, "the member to leave")
    refuse_foreign_workers(app, kafka)


def test_brokers_that_are_not_there_are_named(category: str) -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout=0.5)
    with pytest.raises(
        InfrastructureError,
        match=r"no broker at 127\.0\.0\.1:1 answered within 0\.5 s.*nothing listens.*is the address right",
    ):
        ensure(new_app(category), settings)
