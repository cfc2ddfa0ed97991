"""Making and checking the topics of an App on a real broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

from leftfold import App, Event, FoldView
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.kafka.conftest import MakeTopic
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


def test_the_topics_of_an_app_are_made_as_designed(kafka: KafkaSettings, cluster: ClusterAdmin, category: str) -> None:
    counts = ensure(new_app(category), kafka)
    kinds = ("commands", "events", "state.v2", "dead")
    assert counts == {f"{category}.replies": 3, **{f"{category}.{kind}": 3 for kind in kinds}}
    configs = cluster.configs(counts)
    events = configs[f"{category}.events"]
    assert (events["cleanup.policy"], events["retention.ms"], events["retention.bytes"]) == ("delete", "-1", "-1")
    assert events["message.timestamp.type"] == "LogAppendTime"
    assert configs[f"{category}.state.v2"]["cleanup.policy"] == "compact"
    assert configs[f"{category}.commands"]["retention.ms"] == str(7 * 24 * 3_600_000)
    assert configs[f"{category}.commands"]["message.timestamp.type"] == "LogAppendTime"
    assert configs[f"{category}.dead"]["retention.ms"] == str(90 * 24 * 3_600_000)
    room = cluster.max_batch_bytes([f"{category}.events", f"{category}.dead"])
    assert room == int(events["max.message.bytes"]) > 1_000_000


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


def test_the_workers_of_a_category_are_counted(kafka: KafkaSettings, cluster: ClusterAdmin, category: str) -> None:
    ensure(new_app(category), kafka)
    assert cluster.owners(category) == {}
    group = f"leftfold.any-app.{category}"
    consumer = Consumer({**kafka.librdkafka(), "group.id": group})
    consumer.subscribe([f"{category}.commands"])
    wait_until(lambda: consumer.poll(0.05) is None and cluster.owners(category) == {group: 1}, "the member")
    consumer.close()
    wait_until(lambda: cluster.owners(category).get(group, 0) == 0, "the member to leave")


def test_brokers_that_are_not_there_are_named(category: str) -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout=0.5)
    with pytest.raises(
        InfrastructureError,
        match=r"no broker at 127\.0\.0\.1:1 answered within 0\.5 s.*nothing listens.*is the address right",
    ):
        ensure(new_app(category), settings)
