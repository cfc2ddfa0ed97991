"""Scripts about readers: ends, positions, seeks, pauses, and where a read begins."""

from __future__ import annotations

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, TopicCollection, TopicPartition

from tests.simulation.conformance.bench import SECONDS, Bench, said, shown

__all__ = ["SCRIPTS"]


def _position(reader: Any, topic: str) -> int:
    (place,) = reader.position([TopicPartition(topic, 0)])
    offset: int = place.offset
    return offset


def an_end_is_shown_behind_an_aborted_tail(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.commit(writer, topic, "a", "b")
    bench.open(writer, topic, *"xyz")
    writer.abort_transaction(SECONDS)
    bench.wait_settled(topic)
    for shows in (True, False):
        reader = bench.reader(topic, enable_partition_eof=shows)
        bench.saw(f"read, {shows}", bench.taken(reader, 2), ["a", "b"])
        bench.saw(f"position, {shows}", _position(reader, topic), 2)
        if shows:
            bench.saw("end", bench.until_end(reader), [7])
        # A marker moves the position once it is taken, though no message shows it.
        bench.wait(lambda: reader.poll(0.05) is None and _position(reader, topic) == 7, "the position")  # noqa: B023
    bench.saw("ends", bench.ends(topic), (7, 7))


def an_end_is_shown_at_the_last_stable_offset(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.fill(topic, "a")
    bench.open(writer, topic, "b")
    reader = bench.reader(topic)
    bench.saw("read", bench.until_end(reader), ["a", 1])
    writer.commit_transaction(SECONDS)
    bench.saw("then", bench.until_end(reader), ["b", 3])
    bench.open(writer, topic, "c")
    writer.abort_transaction(SECONDS)
    bench.saw("behind an abort", bench.until_end(reader), [5])
    bench.fill(topic, "d")
    bench.saw("behind that", bench.until_end(reader), ["d", 6])


def an_end_is_shown_once_until_more_comes(bench: Bench) -> None:
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.saw("empty", bench.until_end(reader), [0])
    bench.saw("again", reader.poll(0.3), None)
    bench.fill(topic, "a")
    bench.saw("then", bench.until_end(reader), ["a", 1])
    quiet = bench.reader(topic, enable_partition_eof=False)
    bench.saw("silent", bench.taken(quiet, 1), ["a"])
    bench.saw("no end is shown", quiet.poll(0.5), None)


def watermarks_go_by_isolation(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.fill(topic, "a", "b")
    bench.open(writer, topic, "c")
    for level, end in (("read_committed", 2), ("read_uncommitted", 3)):
        reader = bench.reader(topic, isolation_level=level)
        place = TopicPartition(topic, 0)
        bench.saw(f"{level}", reader.get_watermark_offsets(place, SECONDS), (0, end))
        bench.until_end(reader)
        bench.saw(f"{level}, cached", reader.get_watermark_offsets(place, cached=True)[1], 3)
    missing = said(bench.consumer().get_watermark_offsets, TopicPartition(bench.unique("no"), 0), SECONDS)
    bench.saw("of what is not there", missing, "_UNKNOWN_PARTITION")


def ends_of_several_partitions_go_by_isolation(bench: Bench) -> None:
    topic, writer = bench.topic(partitions=2), bench.writer()
    bench.fill(topic, "a", "b")
    bench.open(writer, topic, "c")
    places = [TopicPartition(topic, number, OFFSET_END) for number in (1, 0)]
    for level, end in (("read_committed", 2), ("read_uncommitted", 3)):
        found = bench.consumer(isolation_level=level).offsets_for_times(places, SECONDS)
        bench.saw(level, [(tp.partition, tp.offset, tp.error) for tp in found], [(1, 0, None), (0, end, None)])
    writer.commit_transaction(SECONDS)
    bench.wait_settled(topic)
    stable = bench.consumer(isolation_level="read_committed").offsets_for_times(places, SECONDS)
    bench.saw("behind the marker", [tp.offset for tp in stable], [0, 4])
    bench.saw("none", said(bench.consumer().offsets_for_times, [], SECONDS), "_INVALID_ARG")
    missing = said(bench.consumer().offsets_for_times, [TopicPartition(bench.unique("no"), 0, OFFSET_END)], SECONDS)
    bench.saw("of what is not there", missing, "_UNKNOWN_PARTITION")


def a_position_is_behind_the_last_message_taken(bench: Bench) -> None:
    topic = bench.topic()
    bench.fill(topic, "a", "b", "c")
    reader = bench.reader(topic, offset=1)
    bench.saw("before", _position(reader, topic), -1001)
    bench.saw("first", bench.taken(reader, 1), ["b"])
    bench.saw("behind it", _position(reader, topic), 2)
    bench.saw("the rest", bench.until_end(reader), ["c", 3])
    bench.saw("at the end", _position(reader, topic), 3)
    bench.saw("of what is not read", bench.consumer().position([TopicPartition(topic, 0)])[0].offset, -1001)


def a_seek_continues_elsewhere(bench: Bench) -> None:
    topic = bench.topic()
    bench.fill(topic, *"abcd")
    reader = bench.reader(topic)
    bench.saw("read", bench.until_end(reader), ["a", "b", "c", "d", 4])
    for offset, seen in ((1, ["b", "c", "d", 4]), (4, [4]), (OFFSET_BEGINNING, ["a", "b", "c", "d", 4])):
        bench.saw(f"seek {offset}", said(reader.seek, TopicPartition(topic, 0, offset)), "ok")
        bench.saw(f"read from {offset}", bench.until_end(reader), seen)
    reader.seek(TopicPartition(topic, 0, OFFSET_END))
    bench.saw("from the end", bench.until_end(reader), [4])


def a_seek_before_an_assignment_is_refused(bench: Bench) -> None:
    topic = bench.topic()
    reader = bench.consumer()
    bench.saw("nothing known", said(reader.seek, TopicPartition(topic, 0, 0)), "_UNKNOWN_PARTITION")
    reader.assign([TopicPartition(topic, 0, 0)])
    bench.until_end(reader)
    bench.saw("another partition", said(reader.seek, TopicPartition(topic, 1, 0)), "_STATE")
    reader.unassign()
    bench.saw("no more", said(reader.seek, TopicPartition(topic, 0, 0)), "_STATE")


def a_pause_holds_what_was_fetched(bench: Bench) -> None:
    topic = bench.topic(2)
    bench.fill(topic, *"abcd")
    reader = bench.consumer()
    reader.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    seen: list[Any] = []
    bench.wait(lambda: bench.collect(seen, reader) and "a" in seen, "the first message")
    reader.pause([TopicPartition(topic, 0)])
    bench.fill(topic, "other", partition=1)
    bench.wait(lambda: bench.collect(seen, reader) and "other" in seen, "the other partition")
    bench.saw("while paused", sorted(v for v in seen if isinstance(v, str)), ["a", "other"])
    reader.resume([TopicPartition(topic, 0)])
    bench.wait(lambda: bench.collect(seen, reader) and 4 in seen, "the end")
    bench.saw("resumed", [v for v in seen if isinstance(v, str) and v != "other"], ["a", "b", "c", "d"])
    bench.saw("pause of nothing", said(bench.consumer().pause, [TopicPartition(topic, 0)]), "ok")


def a_seek_while_paused_counts_when_resumed(bench: Bench) -> None:
    topic = bench.topic()
    bench.fill(topic, *"abc")
    reader = bench.reader(topic)
    place = TopicPartition(topic, 0, 1)
    bench.until_end(reader)
    reader.pause([place])
    bench.saw("seek", said(reader.seek, place), "ok")
    bench.saw("while paused", reader.poll(0.3), None)
    reader.resume([place])
    bench.saw("resumed", bench.until_end(reader), ["b", "c", 3])


def _read_by_policy(bench: Bench, offset: int) -> None:
    topic = bench.topic()
    bench.fill(topic, "a", "b")
    for policy, seen in (("earliest", ["a", "b", 2]), ("latest", [2])):
        reader = bench.reader(topic, offset=offset, auto_offset_reset=policy)
        bench.saw(policy, bench.until_end(reader), seen)
    reader = bench.reader(topic, offset=offset, auto_offset_reset="error")
    bench.saw("error", bench.taken(reader, 1), ["_AUTO_OFFSET_RESET"])


def a_read_begins_where_its_policy_says(bench: Bench) -> None:
    _read_by_policy(bench, OFFSET_INVALID)


def an_offset_out_of_range_is_replaced_as_the_policy_says(bench: Bench) -> None:
    _read_by_policy(bench, 50)


def deleted_records_are_noticed_as_the_policy_says(bench: Bench) -> None:
    topic, admin = bench.topic(), bench.admin()
    bench.fill(topic, *"abcde")
    ahead = bench.reader(topic)
    bench.until_end(ahead)
    for answer in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        bench.saw("low", answer.result(SECONDS).low_watermark, 3)
    bench.saw("watermarks", bench.consumer().get_watermark_offsets(TopicPartition(topic, 0), SECONDS), (3, 5))
    bench.saw("earliest", bench.until_end(bench.reader(topic)), ["d", "e", 5])
    bench.saw("error", bench.taken(bench.reader(topic, auto_offset_reset="error"), 1), ["_AUTO_OFFSET_RESET"])
    bench.fill(topic, "f")
    bench.saw("one who was ahead", bench.until_end(ahead), ["f", 6])


def a_group_whose_offset_was_deleted_begins_as_the_policy_says(bench: Bench) -> None:
    topic, group, admin = bench.topic(), bench.unique("group"), bench.admin()
    bench.fill(topic, *"abcde")
    bench.consumer(group_id=group).commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0, 4)].result(SECONDS)
    bench.saw("earliest", bench.until_end(bench.reader(topic, offset=-1000, group_id=group)), ["e", 5])
    bench.saw("committed", bench.committed(group, topic), [(1, None)])


def a_batch_is_taken_whole_or_until_time_is_up(bench: Bench) -> None:
    topic = bench.topic()
    bench.fill(topic, *"abc")
    reader = bench.reader(topic, enable_partition_eof=False)
    bench.saw("first", bench.taken(reader, 1), ["a"])
    began = bench.clock()
    bench.saw("rest", [shown(message) for message in reader.consume(100, 1.0)], ["b", "c"])
    bench.saw("it waits for more", bench.clock() - began >= 0.9, True)
    bench.saw("nothing", reader.consume(100, 0), [])


def a_reader_of_a_topic_that_is_made_again_goes_by_offsets_alone(bench: Bench) -> None:
    """It hears nothing of the deletion: what it asks for is there by then, or is out of range."""
    topic, admin = bench.topic(), bench.admin()
    bench.fill(topic, *"abc")
    more = {"topic_metadata_refresh_interval_ms": 300}
    policies = ("earliest", "latest", "error")
    readers = [bench.reader(topic, auto_offset_reset=policy, **more) for policy in policies]
    bench.saw("before", [bench.until_end(reader) for reader in readers], [["a", "b", "c", 3]] * 3)
    admin.delete_topics([topic])[topic].result(SECONDS)
    gone = ["UNKNOWN_TOPIC_OR_PART"]
    bench.wait(lambda: [said(admin.describe_topics(TopicCollection([topic]))[topic].result)] == gone, "its end")
    bench.topic(1, topic)
    bench.fill(topic, "new", "newer")
    seen = [bench.until_end(readers[0]), bench.until_end(readers[1]), bench.taken(readers[2], 1)]
    bench.saw("then", seen, [["new", "newer", 2], [2], ["_AUTO_OFFSET_RESET"]])


def a_closed_consumer_does_nothing(bench: Bench) -> None:
    topic = bench.topic()
    reader = bench.reader(topic)
    bench.until_end(reader)
    reader.close()
    bench.saw("poll", said(reader.poll, 0), "RuntimeError")
    bench.saw("committed", said(reader.committed, [TopicPartition(topic, 0)], 5), "RuntimeError")
    bench.saw("close again", said(reader.close), "ok")


SCRIPTS = (
    an_end_is_shown_behind_an_aborted_tail,
    an_end_is_shown_at_the_last_stable_offset,
    an_end_is_shown_once_until_more_comes,
    watermarks_go_by_isolation,
    ends_of_several_partitions_go_by_isolation,
    a_position_is_behind_the_last_message_taken,
    a_seek_continues_elsewhere,
    a_seek_before_an_assignment_is_refused,
    a_pause_holds_what_was_fetched,
    a_seek_while_paused_counts_when_resumed,
    a_read_begins_where_its_policy_says,
    an_offset_out_of_range_is_replaced_as_the_policy_says,
    deleted_records_are_noticed_as_the_policy_says,
    a_group_whose_offset_was_deleted_begins_as_the_policy_says,
    a_batch_is_taken_whole_or_until_time_is_up,
    a_reader_of_a_topic_that_is_made_again_goes_by_offsets_alone,
    a_closed_consumer_does_nothing,
)
