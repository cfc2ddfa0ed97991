"""Scripts about brokers that are killed and started again: what they still know."""

from __future__ import annotations

import logging

from confluent_kafka import TopicPartition

from tests.simulation.conformance.bench import SECONDS, Bench, generation_of, said

__all__ = ["SCRIPTS"]


def records_and_offsets_are_still_there(bench: Bench) -> None:
    topic, group, writer = bench.topic(), bench.unique("group"), bench.writer()
    bench.commit(writer, topic, "a", "b")
    bench.open(writer, topic, "aborted")
    writer.abort_transaction(SECONDS)
    bench.fill(topic, "c")
    bench.consumer(group_id=group).commit(offsets=[TopicPartition(topic, 0, 2, "note")], asynchronous=False)
    bench.wait_settled(topic)
    bench.restart()
    bench.saw("read", bench.read(topic), ["a", "b", "c", 6])
    bench.saw("committed", bench.committed(group, topic), [(2, "note")])
    bench.saw("one continues", said(bench.commit, writer, topic, "d"), "ok")
    bench.wait_settled(topic)
    bench.saw("read then", bench.read(topic), ["a", "b", "c", "d", 8])


def an_open_transaction_is_still_open(bench: Bench) -> None:
    topic, writer, other = bench.topic(), bench.writer(), bench.writer()
    bench.open(writer, topic, "a")
    bench.restart()
    bench.saw("ends", bench.ends(topic), (0, 1))
    bench.saw("another's", said(bench.commit, other, topic, "b"), "ok")
    writer.produce(topic, "c", "k", 0)
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "ok")
    bench.wait_settled(topic)
    bench.saw("read", bench.read(topic), ["a", "b", "c", 5])


def a_transaction_still_times_out(bench: Bench) -> None:
    """Long after the start: one that times out while coordinators are elected may be decided and never ended."""
    topic, writer = bench.topic(), bench.writer(transaction_timeout_ms=20_000)
    bench.open(writer, topic, "a")
    bench.restart()
    bench.wait_settled(topic)
    bench.saw("read", bench.read(topic), [2])
    bench.saw("commit", said(writer.commit_transaction, SECONDS), "_FENCED fatal")


def a_fenced_producer_stays_fenced(bench: Bench) -> None:
    topic, id_ = bench.topic(), bench.unique("id")
    first = bench.writer(id_)
    bench.open(first, topic, "a")
    bench.writer(id_)
    bench.restart()
    bench.saw("commit", said(first.commit_transaction, SECONDS), "_FENCED fatal")
    bench.wait_settled(topic)
    bench.saw("read", bench.read(topic), [2])


def pending_offsets_are_still_pending(bench: Bench) -> None:
    """Each time by another producer: the second call of one may hang behind a restart (librdkafka#5456)."""
    topic, group = bench.topic(2), bench.unique("group")
    outside = bench.consumer(group_id=group).consumer_group_metadata()
    places = [TopicPartition(topic, 0, 5, "note"), TopicPartition(topic, 1, 6)]
    for commits in (True, False):
        writer = bench.writer()
        writer.begin_transaction()
        writer.send_offsets_to_transaction(places, outside, SECONDS)
        bench.restart()
        bench.wait(lambda: bench.count_members(group) == 0, "the group to be loaded")
        bench.saw(f"unstable, {commits}", bench.committed(group, topic, seconds=2), "_TIMED_OUT")
        end = writer.commit_transaction if commits else writer.abort_transaction
        bench.saw(f"end, {commits}", said(end, SECONDS), "ok")
        bench.saw(f"committed, {commits}", bench.committed(group, topic, (0, 1)), [(5, "note"), (6, None)])
        places = [TopicPartition(topic, 0, 9)]


def a_decision_is_carried_out(bench: Bench) -> None:
    """A commit whose answer is lost with the broker is one all the same."""
    topic, id_ = bench.topic(), bench.unique("id")
    writer = bench.writer(id_, far=True)
    unheard = bench.strike("EndTxn", "silence", times=100)
    bench.open(writer, topic, "a")
    bench.saw("commit", said(writer.commit_transaction, 2), "_TIMED_OUT retriable")
    bench.wait(lambda: unheard.handled, "the decision")
    bench.wait_settled(topic)
    bench.restart()
    bench.writer(id_)
    bench.saw("read", bench.read(topic), ["a", 2])


def members_stay_members(bench: Bench) -> None:
    topic, group, writer = bench.topic(2), bench.unique("group"), bench.writer()
    first, second = bench.members(topic, group, 2)
    generation, names = generation_of(first), [first.memberid(), second.memberid()]
    bench.restart()
    place = [TopicPartition(topic, 0, 5)]
    bench.wait(lambda: bench.count_members(group) == 2, "the group to be loaded")
    bench.saw("commit", said(first.commit, offsets=place, asynchronous=False), "ok")
    bench.wait_owned([first, second], 2)
    bench.saw("names", [first.memberid(), second.memberid()] == names, True)
    bench.saw("generation", generation_of(first) - generation, 0)
    writer.begin_transaction()
    sent = said(writer.send_offsets_to_transaction, place, first.consumer_group_metadata(), SECONDS)
    bench.saw("offsets", sent, "ok")
    writer.commit_transaction(SECONDS)
    bench.saw("committed", bench.committed(group, topic), [(5, None)])


def an_idempotent_producer_is_still_known(bench: Bench) -> None:
    topic, producer = bench.topic(), bench.producer(enable_idempotence=True)
    for value in "abc":
        producer.produce(topic, value, "k", 0)
        bench.saw(f"left, {value}", producer.flush(SECONDS), 0)
        if value == "b":
            bench.restart()
    bench.saw("read", bench.read(topic), ["a", "b", "c", 3])


def an_idle_producer_hears_of_it(bench: Bench) -> None:
    """While nothing is under way: the coordinator that comes next may have forgotten a transaction."""
    lines = Lines()
    topic, writer = bench.topic(), bench.writer(logger=lines.logger, log_level=6)
    bench.commit(writer, topic, "a")
    bench.wait_settled(topic)
    writer.poll(0)
    bench.saw("before", lines.failures, [])
    bench.restart()
    bench.wait(lambda: (writer.poll(0), lines.failures)[1], "a line of the log")


class Lines(logging.Handler):
    """What a client logs."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.logger = logging.getLogger("a client of conformance scripts")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the lines that say a connection has failed."""
        if record.getMessage().startswith("FAIL"):
            self.failures.append(record.getMessage())


SCRIPTS = (
    records_and_offsets_are_still_there,
    an_open_transaction_is_still_open,
    a_transaction_still_times_out,
    a_fenced_producer_stays_fenced,
    pending_offsets_are_still_pending,
    a_decision_is_carried_out,
    members_stay_members,
    an_idempotent_producer_is_still_known,
    an_idle_producer_hears_of_it,
)
