"""Senders of answers and of commands are replaced when they can no longer send, and end in order."""

from __future__ import annotations

import ctypes
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from leftfold.client.commands import CommandRequest
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.client.command_producer import CommandProducer
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.replies import ASKED, ASKED_SECONDS, Replies
from leftfold.ports.outgoing import Reply
from tests.reports import Reports
from tests.worker.bank import bank

ANSWER = Reply(b"shop.replies/0", b"id", 0, 1, 1, None)
Config = Mapping[str, Any]


@pytest.fixture
def silent() -> Iterator[Config]:
    """A broker that takes connections and never says a word: what a producer holds is then our answers alone.

    Where nothing listens, `len(producer)` counts librdkafka's own report of that, too, once it is there.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield {
            "bootstrap.servers": f"127.0.0.1:{listener.getsockname()[1]}",
            "api.version.request.timeout.ms": 300_000,
            "socket.timeout.ms": 300_000,
        }


def test_a_sender_that_met_a_fatal_error_is_replaced_and_the_answer_goes_to_the_new_one(silent: Config) -> None:
    counts, reported = Counter[str](), Reports()
    replies = Replies(silent, lambda topic: 1, counts, reported)
    replies.send([ANSWER], "shop.events", {0: 1})
    broken = replies._producer
    provoke_fatal_error(broken)
    replies.send([ANSWER], "shop.events", {0: 1})
    assert replies._producer is not broken
    assert len(replies._producer) == 1
    assert counts == {"reply_senders_replaced": 1}
    ((what, details),) = reported
    assert what == "sender of answers replaced"
    assert "provoked" in details["why"]
    replies.send([ANSWER], "shop.events", {0: 1})
    assert (len(replies._producer), len(reported)) == (2, 1)


def test_a_fatal_error_that_comes_between_two_batches_costs_no_answer_of_the_next(silent: Config) -> None:
    counts = Counter[str]()
    replies = Replies(silent, lambda topic: 1, counts)
    provoke_fatal_error(replies._producer)
    replies.send([], "shop.events", {0: 1})
    replies.send([ANSWER], "shop.events", {0: 1})
    assert (len(replies._producer), counts) == (1, {"reply_senders_replaced": 1})


def test_unknown_reply_topics_are_looked_up_now_and_then_and_known_ones_once(silent: Config) -> None:
    now, asked, counts = [0.0], list[str](), Counter[str]()

    def partitions(topic: str) -> int:
        asked.append(topic)
        return 4 if topic == "shop.replies" else 0

    replies = Replies(silent, partitions, counts, clock=lambda: now[0])
    true = [ANSWER._replace(to=b"shop.replies/%d" % n) for n in range(4)]
    forged = [ANSWER._replace(to=b"x%d.replies/0" % n) for n in range(1_000)]
    replies.send([*true, *forged, *true, ANSWER._replace(to=b"shop.replies/4")], "shop.events", {0: 1})
    assert (asked.count("shop.replies"), len(asked), len(replies._producer)) == (1, ASKED, 8)
    assert counts == {"replies_unanswerable": 1_001}
    now[0] += ASKED_SECONDS + 1
    replies.send([*forged, ANSWER._replace(to=b"a\x00b.replies/0")], "shop.events", {0: 1})
    assert len(asked) == 2 * ASKED


def provoke_fatal_error(producer: confluent_kafka.Producer) -> None:
    """Provokes a fatal error as librdkafka's own tests do; its handle stands behind the head of the Python object."""
    package = Path(confluent_kafka.__file__).parent
    (library,) = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")][:1]
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    assert ctypes.CDLL(str(library)).rd_kafka_test_fatal_error(handle, 22, b"provoked") == 0


def test_answers_that_may_not_be_written_end_a_worker_only_on_its_apps_own_topic(silent: Config) -> None:
    counts = Counter[str]()
    replies = Replies(silent, lambda topic: 1, counts, own="shop.replies")
    denied: Any = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    reported: Any = SimpleNamespace(topic=lambda: "others.replies")
    replies._lost(denied, reported)
    replies.check()
    reported.topic = lambda: "shop.replies"
    replies._lost(denied, reported)
    with pytest.raises(ConfigurationError, match=r"answering in shop\.replies: .*TOPIC_AUTHORIZATION_FAILED"):
        replies.check()
    assert counts["replies_lost"] == 2


_BANK = bank("shop")


@pytest.fixture
def outbox(silent: Config) -> CommandProducer:
    settings = KafkaSettings(bootstrap_servers=silent["bootstrap.servers"])
    return CommandProducer(settings, "shop", lambda id_, error: None)


def test_a_sender_of_commands_that_met_a_fatal_error_is_replaced_at_the_next_command(outbox: CommandProducer) -> None:
    encoded = outbox.pack(CommandRequest(_BANK.deposit("account"), None, None, None), b"shop.replies/0")
    provoke_fatal_error(outbox._producer)
    with pytest.raises(InfrastructureError, match="_FATAL"):
        outbox.put(encoded)
    assert outbox.put(encoded)
    assert len(outbox._producer) == 1


def test_a_sender_of_commands_is_closed_though_a_fatal_error_is_pending(outbox: CommandProducer) -> None:
    outbox.put(outbox.pack(CommandRequest(_BANK.deposit("account"), None, None, None), b"shop.replies/0"))
    provoke_fatal_error(outbox._producer)
    outbox.close(0.1)


def test_a_sender_of_answers_is_flushed_though_a_fatal_error_is_pending(silent: Config) -> None:
    """A worker does so first when it ends, and leaves its partitions in order behind that."""
    replies = Replies(silent, lambda topic: 1, Counter())
    replies.send([ANSWER], "shop.events", {0: 1})
    provoke_fatal_error(replies._producer)
    replies.flush(0.1)
