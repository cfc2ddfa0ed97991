"""Scripts about producers that share a transactional id, and transactions that take too long."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from tests.simulation.conformance.bench import SECONDS, Bench, said

__all__ = ["SCRIPTS"]

FENCED = "_FENCED fatal"


def a_successor_aborts_what_is_open(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    bench.open(bench.writer(id_), topic, "a")
    bench.saw("ends", bench.ends(topic), (0, 1))
    successor = bench.writer(id_)
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), [2])
    bench.commit(successor, topic, "b")
    bench.wait_settled(topic)
    bench.saw("then", bench.read(topic), ["b", 4])


def another_id_leaves_what_is_open(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.open(writer, topic, "a")
    bench.writer()
    bench.saw("ends", bench.ends(topic), (0, 1))
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["a", 2])


def a_fenced_producer_cannot_commit(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_)
    bench.open(first, topic, "a")
    bench.writer(id_)
    bench.saw("commit", said(first.commit_transaction, SECONDS), FENCED)
    bench.saw("commit again", said(first.commit_transaction, SECONDS), FENCED)
    bench.saw("abort", said(first.abort_transaction, SECONDS), FENCED)
    bench.saw("begin", said(first.begin_transaction), FENCED)
    bench.saw("produce", said(first.produce, topic, "b", "k", 0), "_FATAL")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), [2])


def a_fenced_producer_cannot_abort(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_)
    bench.open(first, topic, "a")
    second = bench.writer(id_)
    bench.open(second, topic, "b")
    bench.saw("abort", said(first.abort_transaction, SECONDS), FENCED)
    bench.saw("the other's commit", said(second.commit_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["b", 4])


def a_fenced_producer_cannot_send_offsets(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_)
    first.begin_transaction()
    bench.writer(id_)
    group = bench.unique("group")
    metadata = bench.consumer(group_id=group).consumer_group_metadata()
    offsets = [TopicPartition(topic, 0, 5)]
    bench.saw("offsets", said(first.send_offsets_to_transaction, offsets, metadata, SECONDS), FENCED)
    bench.saw("commit", said(first.commit_transaction, SECONDS), FENCED)
    bench.saw("committed", bench.committed(group, topic), [(-1001, None)])


def a_fenced_producer_hears_of_it_when_it_writes(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_)
    bench.open(first, topic, "a")
    bench.writer(id_)
    _write_fenced(bench, topic, first)


def _write_fenced(bench: Bench, topic: str, writer: Any) -> None:
    """To a partition of its transaction, which may be written without a question to the coordinator."""
    bench.wait_settled(topic)
    reports: list[str] = []
    writer.produce(topic, "b", "k", 0, on_delivery=lambda error, _: reports.append(error.name()))
    bench.wait(lambda: said(writer.poll, 0) and reports, "a report")
    bench.saw("commit", said(writer.commit_transaction, SECONDS), FENCED)
    bench.saw("reports", reports, ["INVALID_PRODUCER_EPOCH"])
    bench.saw("committed", bench.read(topic), [2])


def a_fenced_producer_hears_of_it_at_a_new_partition(bench: Bench) -> None:
    topic, id_ = bench.topic(2), bench.unique("id")
    first = bench.writer(id_)
    bench.open(first, topic, "a")
    bench.writer(id_)
    first.produce(topic, "b", "k", 1)
    bench.saw("commit", said(first.commit_transaction, SECONDS), FENCED)
    bench.saw("written there", bench.ends(topic, 1), (0, 0))


def poll_raises_once_that_a_producer_is_fenced(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    for reported in (False, True):
        errors: list[str] = []
        more: dict[str, Any] = {"error_cb": lambda error: errors.append(error.name())} if reported else {}  # noqa: B023
        first = bench.writer(id_, **more)
        bench.open(first, topic, "a")
        bench.writer(id_)
        bench.saw(f"commit, {reported}", said(first.commit_transaction, SECONDS), FENCED)
        bench.saw(f"poll, {reported}", said(first.poll, 0), FENCED)
        bench.saw(f"poll again, {reported}", said(first.poll, 0), "ok")
        bench.saw(f"errors, {reported}", errors, [])


def a_transaction_that_takes_too_long_is_aborted(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    writer = bench.writer(id_, transaction_timeout_ms=10_000)
    bench.open(writer, topic, "a")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), [2])
    bench.saw("commit", said(writer.commit_transaction, SECONDS), FENCED)
    successor = bench.writer(id_)
    bench.commit(successor, topic, "b")
    bench.wait_settled(topic)
    bench.saw("then", bench.read(topic), ["b", 4])


def a_transaction_that_took_too_long_cannot_be_aborted_again(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.writer(transaction_timeout_ms=10_000)
    bench.open(writer, topic, "a")
    bench.wait_settled(topic)
    bench.saw("abort", said(writer.abort_transaction, SECONDS), FENCED)


def a_transaction_that_took_too_long_cannot_be_written_to(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.writer(transaction_timeout_ms=10_000)
    bench.open(writer, topic, "a")
    _write_fenced(bench, topic, writer)


def a_dead_writers_transaction_holds_the_stable_end_until_it_times_out(bench: Bench) -> None:
    topic, other = bench.topic(), bench.writer()
    began = bench.clock()
    dead = bench.writer(transaction_timeout_ms=20_000)
    bench.open(dead, topic, "dead")
    del dead
    bench.commit(other, topic, "alive")
    bench.saw("committed before", bench.read(topic), [0])
    bench.wait_settled(topic)
    bench.saw("it took its time", bench.clock() - began >= 20.0, True)
    bench.saw("committed then", bench.read(topic), ["alive", 4])


def a_timeout_longer_than_the_broker_allows_is_refused(bench: Bench) -> None:
    writer = bench.producer(transactional_id=bench.unique("id"), transaction_timeout_ms=1_000_000)
    bench.saw("init", said(writer.init_transactions, SECONDS), "INVALID_TRANSACTION_TIMEOUT fatal")


def a_late_record_of_a_fenced_producer_is_refused(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_, far=True)
    bench.open(first, topic, "a")
    late = bench.strike("produce", "hold")
    first.produce(topic, "late", "k", 0)
    bench.wait(lambda: first.poll(0) or late.count, "the record to be on its way")
    second = bench.writer(id_)
    bench.open(second, topic, "b")
    late.release()
    bench.wait(lambda: late.handled, "the late record")
    second.commit_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("uncommitted", bench.read(topic, committed=False), ["a", "b", 4])
    bench.saw("committed", bench.read(topic), ["b", 4])


def a_late_record_behind_an_abort_is_refused(bench: Bench) -> None:
    """Of the same producer: its transaction is over, and a new one has not begun.

    Nothing is sent again while a transaction is aborted: the abort waits until the record has timed out. librdkafka's
    thread of the broker says so after it was counted, and ends the process with an assertion if the abort is through by
    then: the first request to end is lost, so that it is not. Nor may a request time out together with the record.
    """
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_, far=True, socket_timeout_ms=4500, message_timeout_ms=12_000)
    bench.open(first, topic, "a")
    late = bench.strike("produce", "hold")
    first.produce(topic, "late", "k", 0)
    bench.wait(lambda: first.poll(0) or late.count, "the record to be on its way")
    bench.strike("EndTxn", "lose")
    began = bench.clock()
    bench.saw("abort", said(first.abort_transaction, SECONDS), "ok")
    bench.saw("it took its time", bench.clock() - began > 2.0, True)
    bench.wait_settled(topic)
    late.release()
    bench.wait(lambda: late.handled, "the late record")
    bench.saw("ends", bench.ends(topic), (2, 2))
    bench.saw("uncommitted", bench.read(topic, committed=False), ["a", 2])


def an_id_is_taken_once_however_often_that_is_asked(bench: Bench) -> None:
    topic = bench.topic()
    for deed in ("silence", "lose", "repeat"):
        bench.strike("init producer", deed)
        writer = bench.writer(far=True, socket_timeout_ms=1000)
        bench.commit(writer, topic, deed)
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["silence", "lose", "repeat", 6])


def a_late_request_for_an_id_fences_who_has_it_by_then(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    late = bench.strike("init producer", "hold")
    slow = bench.producer(far=True, transactional_id=id_)
    bench.saw("slow init", said(slow.init_transactions, 1), "_TIMED_OUT retriable")
    bench.wait(lambda: late.count, "the request")
    quick = bench.writer(id_)
    bench.open(quick, topic, "a")
    late.release()
    bench.wait(lambda: late.handled, "the late request")
    bench.saw("commit", said(quick.commit_transaction, SECONDS), FENCED)


SCRIPTS = (
    a_successor_aborts_what_is_open,
    another_id_leaves_what_is_open,
    a_fenced_producer_cannot_commit,
    a_fenced_producer_cannot_abort,
    a_fenced_producer_cannot_send_offsets,
    a_fenced_producer_hears_of_it_when_it_writes,
    a_fenced_producer_hears_of_it_at_a_new_partition,
    poll_raises_once_that_a_producer_is_fenced,
    a_transaction_that_takes_too_long_is_aborted,
    a_transaction_that_took_too_long_cannot_be_aborted_again,
    a_transaction_that_took_too_long_cannot_be_written_to,
    a_dead_writers_transaction_holds_the_stable_end_until_it_times_out,
    a_timeout_longer_than_the_broker_allows_is_refused,
    a_late_record_of_a_fenced_producer_is_refused,
    a_late_record_behind_an_abort_is_refused,
    an_id_is_taken_once_however_often_that_is_asked,
    a_late_request_for_an_id_fences_who_has_it_by_then,
)
