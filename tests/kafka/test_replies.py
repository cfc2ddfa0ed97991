"""The sender of answers is replaced when it can no longer send, and the operator hears of it."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka

from leftfold.engine.batch import Reply
from leftfold.kafka.replies import Replies

ANSWER = Reply(b"shop.replies/0", b"id", 0, 1, 1, None)
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def test_a_sender_that_met_a_fatal_error_is_replaced_and_the_answer_goes_to_the_new_one() -> None:
    told: list[tuple[str, Mapping[str, Any]]] = []
    counts = Counter[str]()
    replies = Replies(NOWHERE, lambda topic: 1, counts, lambda what, details: told.append((what, details)))
    replies.send([ANSWER], "shop.events", {0: 1})
    broken = replies._producer
    _break(broken)
    replies.send([ANSWER], "shop.events", {0: 1})
    assert replies._producer is not broken
    assert len(replies._producer) == 1
    assert counts == {"reply_senders_replaced": 1}
    ((what, details),) = told
    assert what == "sender of answers replaced"
    assert "provoked" in details["why"]
    replies.send([ANSWER], "shop.events", {0: 1})
    assert (len(replies._producer), len(told)) == (2, 1)


def test_a_fatal_error_that_comes_between_two_batches_costs_no_answer_of_the_next() -> None:
    counts = Counter[str]()
    replies = Replies(NOWHERE, lambda topic: 1, counts)
    _break(replies._producer)
    replies.send([], "shop.events", {0: 1})
    replies.send([ANSWER], "shop.events", {0: 1})
    assert (len(replies._producer), counts) == (1, {"reply_senders_replaced": 1})


def _break(producer: confluent_kafka.Producer) -> None:
    """Provokes a fatal error as librdkafka's own tests do; its handle stands behind the head of the Python object."""
    package = Path(confluent_kafka.__file__).parent
    (library,) = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")][:1]
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    assert ctypes.CDLL(str(library)).rd_kafka_test_fatal_error(handle, 22, b"provoked") == 0
