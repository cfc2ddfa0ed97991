"""Whoever sends commands or answers goes on, and ends in order, behind a fatal error of its producer."""

from __future__ import annotations

from collections import Counter

import pytest

from leftfold.errors import InfrastructureError
from leftfold.kafka.client.command_producer import CommandProducer
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.replies import Replies
from tests.kafka.test_replies import ANSWER, Config, provoke_fatal_error, silent
from tests.worker.bank import bank

__all__ = ["silent"]  # a fixture
_BANK = bank("shop")


@pytest.fixture
def outbox(silent: Config) -> CommandProducer:
    settings = KafkaSettings(bootstrap_servers=silent["bootstrap.servers"])
    return CommandProducer(settings, "shop", lambda id_, error: None)


def test_a_sender_of_commands_that_met_a_fatal_error_is_replaced_at_the_next_command(outbox: CommandProducer) -> None:
    encoded = outbox.pack(_BANK.deposit("account"), None, None, None, b"shop.replies/0")
    provoke_fatal_error(outbox._producer)
    with pytest.raises(InfrastructureError, match="_FATAL"):
        outbox.put(encoded)
    assert outbox.put(encoded)
    assert len(outbox._producer) == 1


def test_a_sender_of_commands_is_closed_though_a_fatal_error_is_pending(outbox: CommandProducer) -> None:
    outbox.put(outbox.pack(_BANK.deposit("account"), None, None, None, b"shop.replies/0"))
    provoke_fatal_error(outbox._producer)
    outbox.close(0.1)


def test_a_sender_of_answers_is_flushed_though_a_fatal_error_is_pending(silent: Config) -> None:
    """A worker does so first when it ends, and leaves its partitions in order behind that."""
    replies = Replies(silent, lambda topic: 1, Counter())
    replies.send([ANSWER], "shop.events", {0: 1})
    provoke_fatal_error(replies._producer)
    replies.flush(0.1)
