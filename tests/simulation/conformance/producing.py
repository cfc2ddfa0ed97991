"""Scripts about producers without transactions: sequences, timeouts, reports, placement and what a record carries."""

from __future__ import annotations

from typing import Any

from leftfold.model.keys import partition_of
from tests.simulation.conformance.bench import SECONDS, Bench, described, said

__all__ = ["SCRIPTS"]


class _Reports:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, error: Any, message: Any) -> None:
        self.seen.append(message.offset() if error is None else described(error))


def records_are_reported_in_their_order(bench: Bench) -> None:
    topic, producer, reports = bench.topic(), bench.producer(), _Reports()
    for value in "abc":
        producer.produce(topic, value, "k", 0, on_delivery=reports)
    bench.wait(lambda: len(producer) == 3 or producer, "the queue")
    bench.saw("queued until they are reported", len(producer), 3)
    bench.saw("left", producer.flush(SECONDS), 0)
    bench.saw("reports", reports.seen, [0, 1, 2])
    bench.saw("queued then", len(producer), 0)


def a_queue_that_is_full_refuses_more(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.producer(queue_buffering_max_messages=2, linger_ms=0)
    bench.saw("produced", [said(producer.produce, topic, "x", "k", 0) for _ in range(3)], ["ok", "ok", "BufferError"])
    producer.flush(SECONDS)
    bench.saw("behind a flush", said(producer.produce, topic, "x", "k", 0), "ok")
    bench.saw("flushed", producer.flush(SECONDS), 0)
    bench.saw("ends", bench.ends(topic), (3, 3))


def a_flush_says_what_is_left(bench: Bench) -> None:
    topic, producer = bench.topic(), bench.producer(far=True, enable_idempotence=True)
    producer.produce(topic, "a", "k", 0)
    producer.flush(SECONDS)
    held = bench.strike("produce", "hold")
    producer.produce(topic, "b", "k", 0)
    bench.wait(lambda: held.count, "the request")
    bench.saw("left", producer.flush(0.3), 1)
    held.release()
    bench.saw("then", producer.flush(SECONDS), 0)
    bench.saw("read", bench.read(topic), ["a", "b", 2])


def an_idempotent_producer_writes_once(bench: Bench) -> None:
    topic, reports = bench.topic(), _Reports()
    producer = bench.producer(far=True, enable_idempotence=True, socket_timeout_ms=1000)
    for deed in ("silence", "lose", "repeat"):
        bench.strike("produce", deed)
        producer.produce(topic, deed, "k", 0, on_delivery=reports)
        bench.saw(f"flush, {deed}", producer.flush(SECONDS), 0)
    bench.saw("reports", reports.seen, [0, 1, 2])
    bench.saw("read", bench.read(topic), ["silence", "lose", "repeat", 3])


def a_producer_without_idempotence_may_write_twice(bench: Bench) -> None:
    topic = bench.topic()
    producer = bench.producer(far=True, socket_timeout_ms=5000)
    bench.strike("produce", "silence")
    producer.produce(topic, "a", "k", 0)
    producer.flush(SECONDS)
    bench.saw("read", bench.read(topic), ["a", "a", 2])


def an_idempotent_producer_continues_behind_a_timeout(bench: Bench) -> None:
    topic, reports = bench.topic(), _Reports()
    producer = bench.producer(far=True, enable_idempotence=True, message_timeout_ms=8000, socket_timeout_ms=2000)
    producer.produce(topic, "a", "k", 0, on_delivery=reports)
    producer.flush(SECONDS)
    lost = bench.strike("produce", "lose", times=100)
    producer.produce(topic, "lost", "k", 0, on_delivery=reports)
    bench.saw("left", producer.flush(SECONDS), 0)
    lost.release()
    for value in ("b", "c"):
        producer.produce(topic, value, "k", 0, on_delivery=reports)
        bench.saw(f"flush, {value}", producer.flush(SECONDS), 0)
    bench.saw("reports", reports.seen, [0, "_MSG_TIMED_OUT", 1, 2])
    bench.saw("read", bench.read(topic), ["a", "b", "c", 3])


def a_record_that_timed_out_may_be_written(bench: Bench) -> None:
    topic, reports = bench.topic(), _Reports()
    producer = bench.producer(far=True, enable_idempotence=True, message_timeout_ms=8000, socket_timeout_ms=2000)
    silent = bench.strike("produce", "silence", times=100)
    producer.produce(topic, "a", "k", 0, on_delivery=reports)
    bench.wait(lambda: silent.handled, "the record")
    bench.saw("left", producer.flush(SECONDS), 0)
    silent.release()
    producer.produce(topic, "b", "k", 0, on_delivery=reports)
    producer.flush(SECONDS)
    bench.saw("reports", reports.seen, ["_MSG_TIMED_OUT", 1])
    bench.saw("read", bench.read(topic), ["a", "b", 2])


def a_record_of_a_transaction_that_times_out_spoils_it(bench: Bench) -> None:
    topic, reports = bench.topic(), _Reports()
    writer = bench.writer(far=True, message_timeout_ms=8000, socket_timeout_ms=2000)
    bench.commit(writer, topic, "a")
    lost = bench.strike("produce", "lose", times=100)
    writer.begin_transaction()
    writer.produce(topic, "lost", "k", 0, on_delivery=reports)
    # Whether the commit sees first that time is up, or that a record has failed, is a race within librdkafka.
    outcome = said(writer.commit_transaction, SECONDS)
    bench.saw("commit", outcome in ("_TIMED_OUT abortable", "_INCONSISTENT abortable") or outcome, True)
    bench.saw("reports", reports.seen, ["_MSG_TIMED_OUT"])
    lost.release()
    bench.saw("abort", said(writer.abort_transaction, SECONDS), "ok")
    bench.commit(writer, topic, "b")
    bench.wait_settled(topic)
    bench.saw("committed", [v for v in bench.read(topic) if isinstance(v, str)], ["a", "b"])


def a_record_too_large_for_the_broker_is_reported(bench: Bench) -> None:
    for idempotent in (False, True):
        topic, reports = bench.topic(max_message_bytes="2000"), _Reports()
        producer = bench.producer(enable_idempotence=idempotent)
        producer.produce(topic, "a", "k", 0, on_delivery=reports)
        producer.flush(SECONDS)
        producer.produce(topic, "x" * 3000, "k", 0, on_delivery=reports)
        producer.flush(SECONDS)
        producer.produce(topic, "b", "k", 0, on_delivery=reports)
        producer.flush(SECONDS)
        bench.saw(f"reports, {idempotent}", reports.seen, [0, "MSG_SIZE_TOO_LARGE", 1])
        bench.saw(f"read, {idempotent}", bench.read(topic), ["a", "b", 2])


def topics_and_partitions_that_are_not_there_are_reported(bench: Bench) -> None:
    producer, reports, topic = bench.producer(), _Reports(), bench.topic(2)
    producer.produce(bench.unique("missing"), "a", "k", on_delivery=reports)
    producer.produce(bench.unique("missing"), "a", "k", 1, on_delivery=reports)
    producer.produce(topic, "b", "k", 1, on_delivery=reports)
    bench.saw("left", producer.flush(SECONDS), 0)
    bench.saw("partition", said(producer.produce, topic, "a", "k", 2), "_UNKNOWN_PARTITION")
    bench.saw("reports", sorted(reports.seen, key=str), [0, "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_OR_PART"])


def keys_are_placed_as_in_every_other_client(bench: Bench) -> None:
    keys = [f"key-{n}" for n in range(40)] + ["é", "x" * 100]
    topic = bench.topic(7)
    places: dict[str, dict[Any, int]] = {}
    for kind in ("murmur2_random", "murmur2", "consistent", "consistent_random"):
        producer, found = bench.producer(partitioner=kind), places.setdefault(kind, {})
        for key in keys:
            producer.produce(
                topic, "x", key, on_delivery=lambda _, m, found=found: found.update({m.key(): m.partition()})
            )
        producer.flush(SECONDS)
    expected = {key.encode(): partition_of(key.encode(), 7) for key in keys}
    bench.saw("murmur2_random", places["murmur2_random"] == expected, True)
    bench.saw("murmur2", places["murmur2"] == expected, True)
    bench.saw("crc32, both alike", places["consistent"] == places["consistent_random"], True)
    bench.saw("crc32", [places["consistent"][f"key-{n}".encode()] for n in range(6)], [6, 0, 3, 5, 1, 4])


def a_record_carries_what_it_was_given(bench: Bench) -> None:
    topic, producer = bench.topic(), bench.producer()
    headers: list[tuple[str, Any]] = [("a", b"1"), ("b", None), ("a", b"2"), ("c", "text"), ("d", b"")]
    producer.produce(topic, "v", "k", 0, headers=headers, timestamp=1_700_000_000_123)
    producer.produce(topic, None, "k", 0, headers={"x": b"y"})
    producer.produce(topic, b"", b"", 0, headers=[])
    producer.produce(topic, "v", None, 0)
    producer.flush(SECONDS)
    reader = bench.reader(topic)
    seen: list[Any] = []

    def four() -> bool:
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            seen.append(message)
        return len(seen) == 4

    bench.wait(four, "four records")
    found = [(m.key(), m.value(), m.headers(), m.offset(), m.topic() == topic, m.partition()) for m in seen]
    bench.saw("first", found[0][:3], (b"k", b"v", [("a", b"1"), ("b", None), ("a", b"2"), ("c", b"text"), ("d", b"")]))
    bench.saw("second", found[1][:3], (b"k", None, [("x", b"y")]))
    bench.saw("third", found[2][:3], (b"", b"", None))
    bench.saw("fourth", found[3][:3], (None, b"v", None))
    bench.saw("where", [one[3:] for one in found], [(n, True, 0) for n in range(4)])
    times = [m.timestamp() for m in seen]
    bench.saw("timestamp given", times[0], (1, 1_700_000_000_123))
    bench.saw("timestamp of the others", [kind for kind, _ in times], [1] * 4)


def a_broker_may_write_its_own_time(bench: Bench) -> None:
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    bench.fill(topic, "a", timestamp=1_700_000_000_123)
    reader = bench.reader(topic)
    message = reader.poll(SECONDS)
    kind, when = message.timestamp()
    bench.saw("kind", kind, 2)
    bench.saw("later than it was given", when > 1_700_000_000_123, True)


SCRIPTS = (
    records_are_reported_in_their_order,
    a_queue_that_is_full_refuses_more,
    a_flush_says_what_is_left,
    an_idempotent_producer_writes_once,
    a_producer_without_idempotence_may_write_twice,
    an_idempotent_producer_continues_behind_a_timeout,
    a_record_that_timed_out_may_be_written,
    a_record_of_a_transaction_that_times_out_spoils_it,
    a_record_too_large_for_the_broker_is_reported,
    topics_and_partitions_that_are_not_there_are_reported,
    keys_are_placed_as_in_every_other_client,
    a_record_carries_what_it_was_given,
    a_broker_may_write_its_own_time,
)
