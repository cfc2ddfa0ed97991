"""Scripts about committed offsets: within transactions and without, stable ones, and who may commit."""

from __future__ import annotations

from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from leftfold.testing.simulation.kafka.group_member import group_metadata
from tests.simulation.conformance.bench import SECONDS, Bench, described, generation_of, said

__all__ = ["SCRIPTS"]

NOTHING = (-1001, None)
EVICTED, STALE = "UNKNOWN_MEMBER_ID abortable", "ILLEGAL_GENERATION abortable"


def _send(writer: Any, topic: str, metadata: bytes, *offsets: int, note: str = "") -> str:
    """Sends offsets of the first partitions."""
    places = [TopicPartition(topic, partition, offset, note) for partition, offset in enumerate(offsets)]
    return said(writer.send_offsets_to_transaction, places, metadata, SECONDS)


def _outside(bench: Bench, group: str) -> Any:
    """What a consumer that is no member sends."""
    consumer = bench.consumer(group_id=group)
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return metadata


def offsets_are_committed_with_their_transaction(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    writer.begin_transaction()
    writer.produce(topic, "a", "k", 0)
    bench.saw("sent", _send(writer, topic, _outside(bench, group), 5, 6, note="a note"), "ok")
    bench.saw("unstable", bench.committed(group, topic, seconds=0.5), "_TIMED_OUT")
    bench.saw("old", bench.committed(group, topic, isolation_level="read_uncommitted"), [NOTHING])
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic, (0, 1)), [(5, "a note"), (6, "a note")])


def offsets_of_an_abort_are_forgotten(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    metadata = _outside(bench, group)
    for offset, end in ((5, writer.commit_transaction), (9, writer.abort_transaction)):
        writer.begin_transaction()
        _send(writer, topic, metadata, offset, note=f"n{offset}")
        end(SECONDS)
        bench.saw(f"behind {offset}", bench.committed(group, topic), [(5, "n5")])


def offsets_alone_are_a_transaction(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    metadata = _outside(bench, group)
    writer.begin_transaction()
    bench.saw("none sent", said(writer.send_offsets_to_transaction, [], metadata, SECONDS), "ok")
    bench.saw("invalid sent", _send(writer, topic, metadata, -1001), "ok")
    bench.saw("commit of none", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("committed", bench.committed(group, topic), [NOTHING])
    writer.begin_transaction()
    _send(writer, topic, metadata, 3)
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("then", bench.committed(group, topic), [(3, "")])
    bench.saw("ends", bench.ends(topic), (0, 0))


def offsets_sent_twice_are_those_of_the_last_time(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    metadata = _outside(bench, group)
    writer.begin_transaction()
    bench.saw("first", _send(writer, topic, metadata, 5, 6), "ok")
    bench.saw("second", _send(writer, topic, metadata, 7), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic, (0, 1)), [(7, ""), (6, "")])


def only_partitions_of_the_transaction_are_unstable(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    writer.begin_transaction()
    _send(writer, topic, _outside(bench, group), 5)
    bench.saw("another", bench.committed(group, topic, (1,)), [NOTHING])
    bench.saw("both", bench.committed(group, topic, (0, 1), seconds=0.5), "_TIMED_OUT")
    bench.saw("another group", bench.committed(bench.unique("group"), topic), [NOTHING])


def an_offset_is_stable_once_all_transactions_are_over(bench: Bench) -> None:
    topic, group, first, second = bench.topic(), bench.unique("group"), bench.writer(), bench.writer()
    for writer, offset in ((first, 5), (second, 6)):
        writer.begin_transaction()
        _send(writer, topic, _outside(bench, group), offset)
    second.commit_transaction(SECONDS)
    bench.saw("one is open", bench.committed(group, topic, seconds=0.5), "_TIMED_OUT")
    first.abort_transaction(SECONDS)
    bench.saw("none is open", bench.committed(group, topic), [(6, "")])


def what_was_sent_last_wins_whatever_is_committed_last(bench: Bench) -> None:
    topic, group, first, second = bench.topic(), bench.unique("group"), bench.writer(), bench.writer()
    for writer, offset in ((first, 5), (second, 6)):
        writer.begin_transaction()
        _send(writer, topic, _outside(bench, group), offset)
    second.commit_transaction(SECONDS)
    first.commit_transaction(SECONDS)
    bench.saw("of two transactions", bench.committed(group, topic), [(6, "")])
    first.begin_transaction()
    _send(first, topic, _outside(bench, group), 7)
    plain = bench.consumer(group_id=group)
    plain.commit(offsets=[TopicPartition(topic, 0, 8)], asynchronous=False)
    first.commit_transaction(SECONDS)
    bench.saw("of one and a plain commit", bench.committed(group, topic), [(8, None)])


def a_reader_begins_once_what_is_committed_is_stable(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    bench.fill(topic, "a", "b", "c")
    writer.begin_transaction()
    _send(writer, topic, _outside(bench, group), 2)
    reader = bench.consumer(group_id=group)
    reader.assign([TopicPartition(topic, 0)])
    bench.saw("while open", reader.poll(0.5), None)
    writer.commit_transaction(SECONDS)
    bench.saw("then", bench.until_end(reader), ["c", 3])


def a_member_commits_within_a_transaction(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    (member,) = bench.members(topic, group, 1)
    writer.begin_transaction()
    bench.saw("sent", _send(writer, topic, member.consumer_group_metadata(), 5, 6), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic, (0, 1)), [(5, ""), (6, "")])


def metadata_of_an_older_generation_are_refused(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    (first,) = bench.members(topic, group, 1)
    old = first.consumer_group_metadata()
    second = bench.consumer(group_id=group)
    second.subscribe([topic])
    bench.wait_owned([first, second], 2)
    writer.begin_transaction()
    writer.produce(topic, "a", "k", 0)
    bench.saw("old", _send(writer, topic, old, 5), STALE)
    bench.saw("again", _send(writer, topic, first.consumer_group_metadata(), 5), STALE)
    bench.saw("commit", said(writer.commit_transaction, SECONDS), STALE)
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    writer.begin_transaction()
    bench.saw("new", _send(writer, topic, first.consumer_group_metadata(), 5), "ok")
    bench.saw("the other's partition", _send(writer, topic, second.consumer_group_metadata(), 5, 6), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic, (0, 1)), [(5, ""), (6, "")])


def a_future_generation_is_refused(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    (member,) = bench.members(topic, group, 1)
    writer.begin_transaction()
    future = group_metadata(group, member.memberid(), generation_of(member) + 1)
    bench.saw("sent", _send(writer, topic, future, 5), STALE)


def offsets_of_no_member_are_taken_within_a_transaction_even_if_there_are_members(bench: Bench) -> None:
    """A transaction that is begun before an assignment is not fenced at all."""
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    bench.members(topic, group, 1)
    writer.begin_transaction()
    bench.saw("sent", _send(writer, topic, _outside(bench, group), 5), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic), [(5, "")])


def a_member_of_before_is_refused(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    (member,) = bench.members(topic, group, 1)
    old, name = member.consumer_group_metadata(), member.memberid()
    member.close()
    writer.begin_transaction()
    bench.saw("with its generation, group empty", _send(writer, topic, old, 5), EVICTED)
    writer.abort_transaction(SECONDS)
    bench.members(topic, group, 1)
    writer.begin_transaction()
    bench.saw("with its generation, others in", _send(writer, topic, old, 5), EVICTED)
    writer.abort_transaction(SECONDS)
    writer.begin_transaction()
    bench.saw("without, others in", _send(writer, topic, group_metadata(group, name, -1), 5), EVICTED)
    writer.abort_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic), [NOTHING])


def an_unknown_generation_is_not_checked_while_a_group_is_empty(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    (member,) = bench.members(topic, group, 1)
    name = member.memberid()
    member.close()
    writer.begin_transaction()
    bench.saw("a member of before", _send(writer, topic, group_metadata(group, name, -1), 5), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic), [(5, "")])
    writer.begin_transaction()
    bench.saw("no member", _send(writer, topic, group_metadata(group, "", -1), 6), "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed then", bench.committed(group, topic), [(6, "")])


def offsets_are_sent_once_more_when_their_answer_is_lost(bench: Bench) -> None:
    topic, group = bench.topic(), bench.unique("group")
    metadata = _outside(bench, group)
    writer = bench.writer(far=True, socket_timeout_ms=1000)
    number = 0
    for step in ("AddOffsetsToTxn", "TxnOffsetCommit"):
        for deed in ("silence", "lose", "repeat"):
            number += 1
            bench.strike(step, deed)
            writer.begin_transaction()
            bench.saw(f"sent, {step} {deed}", _send(writer, topic, metadata, number), "ok")
            writer.commit_transaction(SECONDS)
            bench.saw(f"committed, {step} {deed}", bench.committed(group, topic), [(number, "")])


def offsets_without_an_answer_spoil_their_transaction(bench: Bench) -> None:
    """The call takes as long as a request may, whatever it was given (librdkafka#5456)."""
    topic, group = bench.topic(), bench.unique("group")
    metadata = _outside(bench, group)
    writer = bench.writer(far=True, socket_timeout_ms=3000)
    late = bench.strike("TxnOffsetCommit", "hold", times=100)
    writer.begin_transaction()
    place = [TopicPartition(topic, 0, 5)]
    began = bench.clock()
    bench.saw("sent", said(writer.send_offsets_to_transaction, place, metadata, 2.5), "_TIMED_OUT abortable")
    bench.saw("it took its time", bench.clock() - began > 2.6, True)
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "_TIMED_OUT abortable")
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    late.release()
    bench.wait(lambda: late.handled == late.count, "the late offsets")
    bench.saw("committed", bench.committed(group, topic), [NOTHING])
    writer.begin_transaction()
    _send(writer, topic, metadata, 6)
    bench.saw("the next", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("committed then", bench.committed(group, topic), [(6, "")])


def late_offsets_of_a_fenced_producer_are_refused(bench: Bench) -> None:
    topic, group, id_ = bench.topic(), bench.unique("group"), bench.unique("id")
    metadata = _outside(bench, group)
    writer = bench.writer(id_, far=True, socket_timeout_ms=1000)
    late = bench.strike("TxnOffsetCommit", "hold", times=100)
    writer.begin_transaction()
    said(writer.send_offsets_to_transaction, [TopicPartition(topic, 0, 5)], metadata, 0.5)
    successor = bench.writer(id_)
    successor.begin_transaction()
    bench.saw("the successor's", _send(successor, topic, metadata, 6), "ok")
    late.release()
    bench.wait(lambda: late.handled == late.count, "the late offsets")
    bench.saw("commit", said(successor.commit_transaction, SECONDS), "ok")
    bench.saw("committed", bench.committed(group, topic), [(6, "")])


def late_offsets_join_the_transaction_that_is_open_by_then(bench: Bench) -> None:
    """The twin: of the same producer, nothing says which transaction they are for."""
    topic, group = bench.topic(), bench.unique("group")
    metadata = _outside(bench, group)
    writer = bench.writer(far=True, socket_timeout_ms=4000)
    late = bench.strike("TxnOffsetCommit", "hold")
    writer.begin_transaction()
    said(writer.send_offsets_to_transaction, [TopicPartition(topic, 0, 5)], metadata, 3.0)
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    writer.begin_transaction()
    bench.saw("sent", _send(writer, topic, metadata, 6), "ok")
    late.release()
    bench.wait(lambda: late.handled, "the late offsets")
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("committed", bench.committed(group, topic), [(5, None)])


def a_commit_keeps_its_metadata(bench: Bench) -> None:
    topic, group, writer = bench.topic(4), bench.unique("group"), bench.writer()
    consumer = bench.consumer(group_id=group)
    places = [TopicPartition(topic, 0, 5, "note"), TopicPartition(topic, 1, 0, "")]
    bench.saw("commit", said(consumer.commit, offsets=places, asynchronous=False), "ok")
    writer.begin_transaction()
    places = [TopicPartition(topic, 2, 5, "note"), TopicPartition(topic, 3, 0)]
    writer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
    writer.commit_transaction(SECONDS)
    seen = [(5, "note"), (0, ""), (5, "note"), (0, None)]
    bench.saw("committed", bench.committed(group, topic, range(4)), seen)
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    bench.saw("backwards", bench.committed(group, topic), [(3, None)])


def a_commit_of_no_member_is_refused_while_there_are_members(bench: Bench) -> None:
    topic, group = bench.topic(), bench.unique("group")
    (member,) = bench.members(topic, group, 1)
    outside = bench.consumer(group_id=group)
    place = [TopicPartition(topic, 0, 5)]
    bench.saw("outside", said(outside.commit, offsets=place, asynchronous=False), "UNKNOWN_MEMBER_ID")
    bench.saw("inside", said(member.commit, offsets=place, asynchronous=False), "ok")
    member.close()
    place = [TopicPartition(topic, 0, 6)]
    bench.saw("outside, once it is empty", said(outside.commit, offsets=place, asynchronous=False), "ok")
    bench.saw("committed", bench.committed(group, topic), [(6, None)])


def an_operator_moves_a_group_only_while_it_is_empty(bench: Bench) -> None:
    topic, group, admin = bench.topic(), bench.unique("group"), bench.admin()

    def alter(offset: int) -> str:
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset, "moved")])
        (answer,) = admin.alter_consumer_group_offsets([moved]).values()
        (place,) = answer.result(SECONDS).topic_partitions
        return "ok" if place.error is None else described(place.error)

    bench.saw("no member in", alter(5), "ok")
    (member,) = bench.members(topic, group, 1)
    bench.saw("a member in", alter(6), "UNKNOWN_MEMBER_ID")
    member.close()
    bench.saw("no member in again", alter(7), "ok")
    bench.saw("committed", bench.committed(group, topic), [(7, "moved")])


SCRIPTS = (
    offsets_are_committed_with_their_transaction,
    offsets_of_an_abort_are_forgotten,
    offsets_alone_are_a_transaction,
    offsets_sent_twice_are_those_of_the_last_time,
    only_partitions_of_the_transaction_are_unstable,
    an_offset_is_stable_once_all_transactions_are_over,
    what_was_sent_last_wins_whatever_is_committed_last,
    a_reader_begins_once_what_is_committed_is_stable,
    a_member_commits_within_a_transaction,
    metadata_of_an_older_generation_are_refused,
    a_future_generation_is_refused,
    offsets_of_no_member_are_taken_within_a_transaction_even_if_there_are_members,
    a_member_of_before_is_refused,
    an_unknown_generation_is_not_checked_while_a_group_is_empty,
    offsets_are_sent_once_more_when_their_answer_is_lost,
    offsets_without_an_answer_spoil_their_transaction,
    late_offsets_of_a_fenced_producer_are_refused,
    late_offsets_join_the_transaction_that_is_open_by_then,
    a_commit_keeps_its_metadata,
    a_commit_of_no_member_is_refused_while_there_are_members,
    an_operator_moves_a_group_only_while_it_is_empty,
)
