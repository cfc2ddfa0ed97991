"""A reaction never goes on with a topic that is not the one it has read, or that ends before what it has done."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from leftfold.errors import ConfigurationError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.reactions.start_offsets import RecordedPlaces, StartOffsets
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from tests.reactions.reacting import EVENTS, Post, made

pytestmark = pytest.mark.servers


def test_a_topic_of_another_id_is_refused_until_it_is_said_where_to_go_on(settings: KafkaSettings) -> None:
    app = made(settings, "moved", Post().act)
    begun = beginnings(app, "moved")
    begin(app, settings, "moved")
    RecordedPlaces(begun, settings).write({(EVENTS, 0): 0}, {EVENTS: "another"})
    with pytest.raises(ConfigurationError, match=r"with id another, .* leftfold reactions begin moved --since TIME"):
        begin(app, settings, "moved")
    StartOffsets(app, app.reaction("moved"), settings).again("end")
    begin(app, settings, "moved")


def test_what_was_recorded_without_an_id_gets_one(settings: KafkaSettings) -> None:
    app = made(settings, "older", Post().act)
    begin(app, settings, "older")
    places = RecordedPlaces(beginnings(app, "older"), settings)
    places.write(places.read())
    begin(app, settings, "older")
    again = RecordedPlaces(beginnings(app, "older"), settings)
    with ClusterAdmin(settings) as cluster:
        assert again.read().keys() == again.ids.keys()
        assert set(again.ids.values()) == {cluster.identity(EVENTS)}


def test_a_topic_that_ends_before_what_was_done_is_refused(settings: KafkaSettings) -> None:
    app = made(settings, "cut", Post().act)
    begin(app, settings, "cut")
    with Consumer({**settings.librdkafka(), "group.id": names.reacting(app.name, "cut")}) as consumer:
        consumer.commit(offsets=[TopicPartition(EVENTS, 0, 1_000_000)], asynchronous=False)
    with pytest.raises(ConfigurationError, match=r"ends at \d+, but reaction cut has read it up to offset 1000000"):
        begin(app, settings, "cut")


def begin(app: App, settings: KafkaSettings, name: str) -> None:
    StartOffsets(app, app.reaction(name), settings).begin()


def beginnings(app: App, name: str) -> str:
    """The topic of where it began."""
    return names.begun(app.reaction(name).name)
