"""Scripts about transactions: what readers see of them, what may follow what, and what has an unknown outcome."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from tests.simulation.conformance.bench import SECONDS, Bench, Deed, said

__all__ = ["SCRIPTS"]


def records_are_seen_once_they_are_committed(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.open(writer, topic, "a", "b")
    bench.saw("ends while open", bench.ends(topic), (0, 2))
    bench.saw("committed while open", bench.read(topic), [0])
    bench.saw("uncommitted while open", bench.read(topic, committed=False), ["a", "b", 2])
    writer.commit_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("ends", bench.ends(topic), (3, 3))
    bench.saw("committed", bench.read(topic), ["a", "b", 3])
    bench.saw("uncommitted", bench.read(topic, committed=False), ["a", "b", 3])


def aborted_records_are_never_seen(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    bench.commit(writer, topic, "a")
    bench.open(writer, topic, "b", "c")
    writer.abort_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("committed, nothing behind", bench.read(topic), ["a", 5])
    bench.commit(writer, topic, "d")
    bench.wait_settled(topic)
    bench.saw("ends", bench.ends(topic), (7, 7))
    bench.saw("committed", bench.read(topic), ["a", "d", 7])
    bench.saw("uncommitted", bench.read(topic, committed=False), ["a", "b", "c", "d", 7])


def a_transaction_without_records_writes_nothing(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer()
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        end(SECONDS)
    bench.saw("ends", bench.ends(topic), (0, 0))
    bench.commit(writer, topic, "a")
    bench.wait_settled(topic)
    bench.saw("records", bench.read(topic), ["a", 2])


def the_first_open_transaction_holds_the_stable_end(bench: Bench) -> None:
    topic, first, second = bench.topic(), bench.writer(), bench.writer()
    bench.fill(topic, "before")
    bench.open(first, topic, "first")
    bench.commit(second, topic, "second")
    bench.fill(topic, "plain")
    bench.wait(lambda: bench.ends(topic)[1] == 5, "the marker")
    bench.saw("ends", bench.ends(topic), (1, 5))
    bench.saw("committed", bench.read(topic), ["before", 1])
    bench.saw("uncommitted", bench.read(topic, committed=False), ["before", "first", "second", "plain", 5])
    first.abort_transaction(SECONDS)
    bench.wait_settled(topic)
    bench.saw("committed in the end", bench.read(topic), ["before", "second", "plain", 6])


def each_partition_of_a_transaction_gets_its_own_marker(bench: Bench) -> None:
    topic, writer = bench.topic(3), bench.writer()
    writer.begin_transaction()
    for partition, value in ((0, "a"), (2, "b"), (0, "c")):
        writer.produce(topic, value, "k", partition)
    writer.commit_transaction(SECONDS)
    for partition in range(3):
        bench.wait_settled(topic, partition)
    bench.saw("ends", [bench.ends(topic, p)[1] for p in range(3)], [3, 0, 2])
    bench.saw("read", [bench.read(topic, partition=p) for p in range(3)], [["a", "c", 3], [0], ["b", 2]])


def calls_out_of_order_are_refused(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.producer(transactional_id=bench.unique("id"))
    group = bench.consumer().consumer_group_metadata()
    state = "_STATE"
    bench.saw("begin before init", said(writer.begin_transaction), state)
    bench.saw("produce before init", said(writer.produce, topic, "x"), state)
    bench.saw("init", said(writer.init_transactions, SECONDS), "ok")
    bench.saw("init again", said(writer.init_transactions, SECONDS), state)
    bench.saw("produce before begin", said(writer.produce, topic, "x"), state)
    bench.saw("commit before begin", said(writer.commit_transaction, SECONDS), state)
    bench.saw("abort before begin", said(writer.abort_transaction, SECONDS), state)
    offsets = [TopicPartition(topic, 0, 1)]
    bench.saw("offsets before begin", said(writer.send_offsets_to_transaction, offsets, group, SECONDS), state)
    bench.saw("no offsets before begin", said(writer.send_offsets_to_transaction, [], group, SECONDS), "ok")
    bench.saw("begin", said(writer.begin_transaction), "ok")
    bench.saw("begin again", said(writer.begin_transaction), state)
    bench.saw("produce", said(writer.produce, topic, "x"), "ok")
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("commit again", said(writer.commit_transaction, SECONDS), state)
    bench.saw("abort behind the commit", said(writer.abort_transaction, SECONDS), state)
    bench.saw("produce behind the commit", said(writer.produce, topic, "x"), state)
    bench.saw("begin the next", said(writer.begin_transaction), "ok")
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    bench.saw("commit behind the abort", said(writer.commit_transaction, SECONDS), state)
    bench.saw("produce behind the abort", said(writer.produce, topic, "x"), state)


def a_producer_without_an_id_has_no_transactions(bench: Bench) -> None:
    producer = bench.producer()
    bench.saw("init", said(producer.init_transactions, SECONDS), "_NOT_CONFIGURED")
    bench.saw("begin", said(producer.begin_transaction), "_NOT_CONFIGURED")
    bench.saw("commit", said(producer.commit_transaction, SECONDS), "_NOT_CONFIGURED")
    bench.saw("abort", said(producer.abort_transaction, SECONDS), "_NOT_CONFIGURED")


def an_abort_throws_away_what_is_queued(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer(linger_ms=50_000)
    reports: list[str] = []
    bench.commit(writer, topic, "known")
    writer.begin_transaction()
    for value in ("a", "b"):
        writer.produce(topic, value, "k", 0, on_delivery=lambda error, _: reports.append(error and error.name()))
    writer.abort_transaction(SECONDS)
    writer.poll(0)
    bench.saw("reports", reports, ["_PURGE_QUEUE"] * 2)
    bench.saw("left", len(writer), 0)
    bench.commit(writer, topic, "c")
    bench.wait_settled(topic)
    # Whether the abort has a marker depends on whether the client had added the partition yet.
    bench.saw("committed", bench.read(topic)[:2], ["known", "c"])


def a_topic_that_is_not_there_fails_the_commit(bench: Bench) -> None:
    writer = bench.writer()
    reports: list[str] = []
    topic, missing = bench.topic(), bench.unique("missing")
    writer.begin_transaction()
    writer.produce(topic, "a", "k", 0)
    writer.produce(missing, "b", "k", 0, on_delivery=lambda error, _: reports.append(error.name()))
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "_INCONSISTENT abortable")
    bench.saw("reports", reports, ["UNKNOWN_TOPIC_OR_PART"])
    bench.saw("commit again", said(writer.commit_transaction, SECONDS), "_INCONSISTENT abortable")
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    bench.commit(writer, topic, "c")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic)[0], "c")


def a_partition_that_is_not_there_is_refused_at_once(bench: Bench) -> None:
    topic, writer = bench.topic(2), bench.writer()
    bench.commit(writer, topic, "known")
    writer.begin_transaction()
    bench.saw("produce", said(writer.produce, topic, "a", "k", 2), "_UNKNOWN_PARTITION")
    bench.saw("commit all the same", said(writer.commit_transaction, SECONDS), "ok")


def a_record_too_large_for_the_client_spoils_nothing(bench: Bench) -> None:
    topic, writer = bench.topic(), bench.writer(message_max_bytes=2000)
    writer.begin_transaction()
    bench.saw("produce", said(writer.produce, topic, "x" * 3000, "k", 0), "MSG_SIZE_TOO_LARGE")
    writer.produce(topic, "a", "k", 0)
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["a", 2])


def a_record_too_large_for_the_broker_spoils_its_transaction(bench: Bench) -> None:
    topic, writer = bench.topic(max_message_bytes="2000"), bench.writer()
    writer.begin_transaction()
    writer.produce(topic, "x" * 3000, "k", 0)
    writer.flush(SECONDS)
    bench.saw("produce", said(writer.produce, topic, "b", "k", 0), "_STATE")
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "MSG_SIZE_TOO_LARGE abortable")
    bench.saw("begin", said(writer.begin_transaction), "MSG_SIZE_TOO_LARGE abortable")
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    # The sequence of what was refused is missing at the broker, which takes nothing behind it.
    writer.begin_transaction()
    writer.produce(topic, "c", "k", 0)
    bench.saw("commit the next", said(writer.commit_transaction, SECONDS), "OUT_OF_ORDER_SEQUENCE_NUMBER abortable")
    bench.saw("abort that, too", said(writer.abort_transaction, SECONDS), "ok")
    bench.commit(writer, topic, "d")
    bench.wait_settled(topic)
    bench.saw("committed", [one for one in bench.read(topic) if not isinstance(one, int)], ["d"])


def a_commit_without_an_answer_is_unknown_and_cannot_be_aborted(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    writer = bench.writer(id_, far=True)
    held = bench.strike("EndTxn", "hold", times=100)
    bench.open(writer, topic, "a")
    bench.saw("commit", said(writer.commit_transaction, 1), "_TIMED_OUT retriable")
    bench.saw("abort", said(writer.abort_transaction, 1), "_CONFLICT retriable")
    bench.saw("produce", said(writer.produce, topic, "x", "k", 0), "_STATE")
    bench.saw("begin", said(writer.begin_transaction), "_CONFLICT retriable")
    bench.saw("ends", bench.ends(topic), (0, 1))
    held.release()
    bench.wait(lambda: held.handled == 1, "the answer")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["a", 2])
    bench.saw("commit again", said(writer.commit_transaction, SECONDS), "ok")
    bench.saw("begin the next", said(writer.begin_transaction), "ok")


def _succeed(bench: Bench, deed: Deed) -> tuple[str, Any]:
    """A topic, and the successor of a producer whose commit was not answered."""
    topic, id_ = bench.topic(), bench.unique("id")
    writer = bench.writer(id_, far=True)
    struck = bench.strike("EndTxn", deed, times=100)
    bench.open(writer, topic, "a")
    bench.saw("commit", said(writer.commit_transaction, 1), "_TIMED_OUT retriable")
    bench.wait(lambda: struck.handled or (deed == "lose" and struck.count), "the request to end it")
    successor = bench.writer(id_)
    bench.wait_settled(topic)
    return topic, successor


def a_commit_that_never_arrives_is_undone_by_a_successor(bench: Bench) -> None:
    topic, _ = _succeed(bench, "lose")
    bench.saw("committed", bench.read(topic), [2])


def a_commit_that_arrived_unheard_is_left_as_it_is_by_a_successor(bench: Bench) -> None:
    topic, successor = _succeed(bench, "silence")
    bench.saw("committed", bench.read(topic), ["a", 2])
    bench.commit(successor, topic, "b")
    bench.wait_settled(topic)
    bench.saw("and on", bench.read(topic), ["a", "b", 4])


def an_end_is_asked_for_again_when_its_answer_is_lost(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.writer(far=True, socket_timeout_ms=1000)
    for deed in ("silence", "lose"):
        struck = bench.strike("EndTxn", deed)
        bench.open(writer, topic, deed)
        bench.saw(f"commit, {deed}", said(writer.commit_transaction, SECONDS), "ok")
        bench.saw(f"struck, {deed}", struck.count, 1)
    struck = bench.strike("EndTxn", "silence")
    bench.open(writer, topic, "aborted")
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["silence", "lose", 6])


def a_late_commit_commits_what_came_after_it(bench: Bench) -> None:
    """librdkafka#5423: nothing in the request says which transaction is meant."""
    topic = bench.topic()
    writer = bench.writer(far=True, socket_timeout_ms=1000)
    late = bench.strike("EndTxn", "hold")
    bench.commit(writer, topic, "one")
    bench.open(writer, topic, "two")
    late.release()
    bench.wait(lambda: late.handled == 1, "the late commit")
    bench.wait_settled(topic)
    bench.saw("two, before it is decided", bench.read(topic), ["one", "two", 4])
    writer.produce(topic, "three", "k", 0)
    writer.flush(SECONDS)
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "INVALID_TXN_STATE fatal")


def a_late_commit_is_fenced_by_a_new_producer(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    writer = bench.writer(id_, far=True, socket_timeout_ms=1000)
    late = bench.strike("EndTxn", "hold")
    bench.commit(writer, topic, "one")
    successor = bench.writer(id_)
    bench.open(successor, topic, "two")
    late.release()
    bench.wait(lambda: late.handled == 1, "the late commit")
    bench.saw("ends", bench.ends(topic), (2, 3))
    bench.saw("abort", said(successor.abort_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["one", 4])


def a_record_is_written_once_however_often_it_is_sent(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.writer(far=True, socket_timeout_ms=1000)
    offsets: list[int] = []
    for deed in ("silence", "lose", "repeat"):
        struck = bench.strike("produce", deed)
        writer.begin_transaction()
        writer.produce(topic, deed, "k", 0, on_delivery=lambda _, message: offsets.append(message.offset()))
        bench.saw(f"commit, {deed}", said(writer.commit_transaction, SECONDS), "ok")
        bench.saw(f"struck, {deed}", struck.count, 1)
        bench.wait_settled(topic)
    bench.saw("offsets", offsets, [0, 2, 4])
    bench.saw("committed", bench.read(topic), ["silence", "lose", "repeat", 6])


def partitions_are_added_once_however_often_that_is_asked(bench: Bench) -> None:
    topic = bench.topic()
    writer = bench.writer(far=True, socket_timeout_ms=1000)
    for deed in ("silence", "lose", "repeat"):
        bench.strike("add partitions", deed)
        bench.open(writer, topic, deed)
        bench.saw(f"commit, {deed}", said(writer.commit_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("committed", bench.read(topic), ["silence", "lose", "repeat", 6])


SCRIPTS = (
    records_are_seen_once_they_are_committed,
    aborted_records_are_never_seen,
    a_transaction_without_records_writes_nothing,
    the_first_open_transaction_holds_the_stable_end,
    each_partition_of_a_transaction_gets_its_own_marker,
    calls_out_of_order_are_refused,
    a_producer_without_an_id_has_no_transactions,
    an_abort_throws_away_what_is_queued,
    a_topic_that_is_not_there_fails_the_commit,
    a_partition_that_is_not_there_is_refused_at_once,
    a_record_too_large_for_the_client_spoils_nothing,
    a_record_too_large_for_the_broker_spoils_its_transaction,
    a_commit_without_an_answer_is_unknown_and_cannot_be_aborted,
    a_commit_that_never_arrives_is_undone_by_a_successor,
    a_commit_that_arrived_unheard_is_left_as_it_is_by_a_successor,
    an_end_is_asked_for_again_when_its_answer_is_lost,
    a_late_commit_commits_what_came_after_it,
    a_late_commit_is_fenced_by_a_new_producer,
    a_record_is_written_once_however_often_it_is_sent,
    partitions_are_added_once_however_often_that_is_asked,
)
