"""Answers that somebody forged among those of workers: every command gets its own."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leftfold.errors import ContractError
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.model import keys as names
from leftfold.model.position import Receipt
from tests.worker.broker import Broker
from tests.worker.raw_headers import produce_with_header
from tests.worker.running import Running

pytestmark = pytest.mark.servers

HOSTILE = (b"", b"no json", b"[]", b"[" * 10_000, b'{"error":{}}', b'{"version":' + b"9" * 5000 + b"}", bytes(100_000))


def test_forged_answers_keep_nobody_from_theirs(broker: Broker) -> None:
    """Headers that are no text once cost the answers that were fetched with them."""
    one, stop = broker.bank(partitions=1), threading.Event()
    topic, forged = names.replies(one.name), threading.Event()
    forger = broker.producer()

    def forge() -> None:
        number = 0
        while not stop.is_set():
            headers: list[Any] = [("ce_causationid", b"\xff%d" % number), ("ce_causationid", None)]
            forger.produce(topic, HOSTILE[number % len(HOSTILE)], b"k", 0, headers=headers[: number % 3])
            forger.flush()
            produce_with_header(broker.address, topic, 0, b"k", b"x", b"\xff\xfe")
            number += 1
            forged.set()

    thread = threading.Thread(target=forge)
    with KafkaClient(one.name, broker.settings) as client, Running(one, broker.address):
        thread.start()
        try:
            assert forged.wait(240.0)
            answers = client.send_many([one.deposit(f"a-{n}") for n in range(500)], timeout=240.0)
            again = [client.send(one.deposit("once"), timeout=240.0).version for _ in range(20)]
        finally:
            stop.set()
            thread.join()
    assert [type(answer) for answer in answers] == [Receipt] * 500
    assert again == list(range(1, 21))


def test_a_forged_answer_to_a_command_is_refused_and_another_one_is_answered(broker: Broker) -> None:
    """A position of another topic is not believed: whoever read after it would wait in vain."""
    one = broker.bank(partitions=1)
    with KafkaClient(one.name, broker.settings) as client:
        headers: list[Any] = [("ce_causationid", b"mine")]
        forger = broker.producer()
        stop = threading.Event()

        def forge() -> None:
            while not stop.wait(0.01):
                value = b'{"version":1,"events":1,"position":{"others.events":{"0":9}}}'
                forger.produce(names.replies(one.name), value, b"k", 0, headers=headers)
                forger.flush()

        thread = threading.Thread(target=forge)
        thread.start()
        try:
            with pytest.raises(ContractError, match=r"the position is in 'others.events'"):
                client.send(one.deposit("a"), id="mine", timeout=240.0)
        finally:
            stop.set()
            thread.join()
        with Running(one, broker.address):
            assert client.send(one.deposit("b"), timeout=240.0).version == 1
