"""Scripts about what an operator asks and does: topics, offsets by time, deletion, groups, settings, compaction."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.simulation.conformance.bench import SECONDS, Bench, said

__all__ = ["SCRIPTS", "SLOW"]


def _answered(answers: Any) -> list[str]:
    return [said(answer.result, SECONDS) for answer in answers.values()]


def topics_are_made_once(bench: Bench) -> None:
    name, admin = bench.unique("topic"), bench.admin()
    bench.saw("made", _answered(admin.create_topics([NewTopic(name, 2, 1)])), ["ok"])
    bench.saw("made again", _answered(admin.create_topics([NewTopic(name, 2, 1)])), ["TOPIC_ALREADY_EXISTS"])
    bench.saw("a bad name", _answered(admin.create_topics([NewTopic("a/b", 1, 1)])), ["TOPIC_EXCEPTION"])
    bench.saw("no partition", _answered(admin.create_topics([NewTopic(f"{name}-0", 0, 1)])), ["INVALID_PARTITIONS"])
    bench.saw("deleted", _answered(admin.delete_topics([name])), ["ok"])
    bench.wait(lambda: _answered(admin.delete_topics([name])) == ["UNKNOWN_TOPIC_OR_PART"], "the topic to be away")


def a_topic_that_is_made_again_is_another_one(bench: Bench) -> None:
    admin, topic = bench.admin(), bench.topic(2)
    bench.fill(topic, "a")

    def described() -> Any:
        return admin.describe_topics(TopicCollection([topic]))[topic].result(SECONDS)

    first = described()
    bench.saw("the same id", str(described().topic_id) == str(first.topic_id), True)
    bench.saw("partitions", [p.id for p in first.partitions], [0, 1])
    admin.delete_topics([topic])[topic].result(SECONDS)
    gone = "UNKNOWN_TOPIC_OR_PART"
    bench.wait(lambda: _answered(admin.describe_topics(TopicCollection([topic]))) == [gone], "the topic to be away")
    bench.topic(1, topic)
    second = described()
    bench.saw("another id", str(second.topic_id) != str(first.topic_id), True)
    bench.saw("partitions then", [p.id for p in second.partitions], [0])
    bench.saw("ends", bench.ends(topic), (0, 0))


def metadata_say_what_is_there(bench: Bench) -> None:
    admin, topic, missing = bench.admin(), bench.topic(3), bench.unique("missing")
    found = admin.list_topics(topic, SECONDS).topics[topic]
    bench.saw("partitions", sorted(found.partitions), [0, 1, 2])
    bench.saw("error", found.error, None)
    unknown = admin.list_topics(missing, SECONDS).topics[missing]
    bench.saw("missing", (unknown.error.name(), len(unknown.partitions)), ("UNKNOWN_TOPIC_OR_PART", 0))
    everything = admin.list_topics(timeout=SECONDS).topics
    bench.saw("listed", (topic in everything, missing in everything), (True, False))
    bench.saw("by others", topic in bench.consumer().list_topics(timeout=SECONDS).topics, True)


def offsets_are_found_by_time(bench: Bench) -> None:
    topic, admin, writer = bench.topic(), bench.admin(), bench.writer()
    for value, when in (("a", 1000), ("b", 3000), ("c", 2000), ("d", 5000)):
        bench.fill(topic, value, timestamp=1_700_000_000_000 + when)
    bench.open(writer, topic, "e")

    spec: Any = OffsetSpec

    def at(wanted: Any) -> int:
        place = TopicPartition(topic, 0)
        offset: int = admin.list_offsets({place: wanted})[place].result(SECONDS).offset
        return offset

    bench.saw("earliest", at(spec.earliest()), 0)
    bench.saw("latest counts what is open", at(spec.latest()), 5)
    for when, offset in ((0, 0), (1000, 0), (1001, 1), (2000, 1), (3001, 3), (5000, 3)):
        bench.saw(f"at {when}", at(spec.for_timestamp(1_700_000_000_000 + when)), offset)
    writer.abort_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("latest then", at(spec.latest()), 6)
    bench.saw("never", at(spec.for_timestamp(4_000_000_000_000)), -1)
    answers = admin.list_offsets({TopicPartition(bench.unique("missing"), 0): spec.latest()})
    bench.saw("missing", _answered(answers), ["_NOENT"])


def records_are_deleted_up_to_an_offset(bench: Bench) -> None:
    topic, admin, writer = bench.topic(), bench.admin(), bench.writer()
    bench.fill(topic, *"abcd")

    def delete(before: int) -> Any:
        place = TopicPartition(topic, 0, before)
        answer = admin.delete_records([place])[place]
        refused = said(answer.result, SECONDS)
        return answer.result().low_watermark if refused == "ok" else refused

    bench.saw("two", delete(2), 2)
    bench.saw("fewer", delete(1), 2)
    bench.saw("too many", delete(9), "OFFSET_OUT_OF_RANGE")
    bench.open(writer, topic, "open")
    bench.saw("what is open", delete(5), 5)
    writer.commit_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("read", bench.read(topic), [6])
    bench.saw("all", delete(-1), 6)
    bench.saw("watermarks", bench.consumer().get_watermark_offsets(TopicPartition(topic, 0), SECONDS), (6, 6))
    bench.fill(topic, "e")
    bench.saw("read then", bench.read(topic), ["e", 7])


def a_compacted_topic_lets_nothing_be_deleted(bench: Bench) -> None:
    topic, admin = bench.topic(cleanup_policy="compact"), bench.admin()
    bench.fill(topic, "a", "b")
    place = TopicPartition(topic, 0, 1)
    bench.saw("delete", _answered(admin.delete_records([place])), ["POLICY_VIOLATION"])
    bench.alter(topic, cleanup_policy="delete")
    bench.wait(lambda: _answered(admin.delete_records([place])) == ["ok"], "the broker to hear of its policy")
    bench.saw("read", bench.read(topic), ["b", 2])


def settings_are_read_and_changed(bench: Bench) -> None:
    topic, admin = bench.topic(cleanup_policy="compact", max_message_bytes="5000"), bench.admin()

    def settings() -> list[Any]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = admin.describe_configs([resource])[resource].result(SECONDS)
        names = ("cleanup.policy", "max.message.bytes", "retention.ms", "min.insync.replicas", "retention.bytes")
        more = ("message.timestamp.type", "compression.type")
        return [found[name].value for name in (*names, *more)]

    rest = ["604800000", "1", "-1", "CreateTime", "producer"]
    bench.saw("made", settings(), ["compact", "5000", *rest])
    bench.alter(topic, cleanup_policy="delete", retention_ms="1000000")
    bench.wait(lambda: settings()[0] == "delete", "the change")
    bench.saw("changed", settings(), ["delete", "5000", "1000000", *rest[1:]])
    missing = ConfigResource(ResourceType.TOPIC, bench.unique("missing"))
    bench.saw("missing", _answered(admin.describe_configs([missing])), ["UNKNOWN_TOPIC_OR_PART"])


def groups_are_listed_with_their_members(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")

    def listed() -> int | None:
        return bench.count_members(group)

    bench.saw("never seen", listed(), None)
    outside = bench.consumer(group_id=group)
    outside.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    bench.saw("committed only", listed(), 0)
    first, second = bench.members(topic, group, 2)
    bench.saw("two members", listed(), 2)
    second.close()
    bench.wait_owned([first], 2)
    bench.saw("one member", listed(), 1)
    first.close()
    bench.wait(lambda: listed() == 0, "the last to leave")


def compaction_keeps_the_last_record_of_each_key(bench: Bench) -> None:
    config: dict[str, Any] = {"segment_ms": "200", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "300"}
    topic = bench.topic(cleanup_policy="compact", delete_retention_ms="3600000", **config)
    writer = bench.writer()
    for key, value in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", None), ("a", "3")):
        writer.begin_transaction()
        writer.produce(topic, value, key, 0)
        writer.commit_transaction(SECONDS)
    writer.begin_transaction()
    writer.produce(topic, "aborted", "a", 0)
    writer.abort_transaction(SECONDS)
    bench.wait_settled(topic)
    end = bench.ends(topic)[1]
    bench.clean(topic, end)
    seen = bench.read(topic)
    bench.saw("read", [value for value in seen if value != "roll"][:-1], ["1", None, "3"])
    bench.saw("the end stays", seen[-1] >= end, True)
    bench.saw("from within what was removed", bench.until_end(bench.reader(topic, offset=1))[0], "1")


SCRIPTS = (
    topics_are_made_once,
    a_topic_that_is_made_again_is_another_one,
    metadata_say_what_is_there,
    offsets_are_found_by_time,
    records_are_deleted_up_to_an_offset,
    a_compacted_topic_lets_nothing_be_deleted,
    settings_are_read_and_changed,
    groups_are_listed_with_their_members,
)
SLOW = (compaction_keeps_the_last_record_of_each_key,)
