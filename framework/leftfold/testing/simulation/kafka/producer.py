"""A simulated `confluent_kafka.Producer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition

from leftfold.testing.simulation.kafka.client import FOREVER
from leftfold.testing.simulation.kafka.metadata import Metadata, cluster_metadata
from leftfold.testing.simulation.kafka.sending import as_bytes
from leftfold.testing.simulation.kafka.transacting import TransactionalSender

__all__ = ["Producer"]


class Producer:
    """`confluent_kafka.Producer` over the active world."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None, **more: Any) -> None:
        self._sender = TransactionalSender({**config, **more}, logger)

    def __del__(self) -> None:
        # As the real one: whoever lets go of it has what is still queued thrown away.
        sender = getattr(self, "_sender", None)
        if sender is not None:
            sender.is_closed = True

    def __len__(self) -> int:
        return self._sender.left + self._sender.unserved

    def __bool__(self) -> bool:
        return True

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Queues a record."""
        self._sender.step("produce")
        report = on_delivery or callback
        self._sender.produce(topic, as_bytes(value), as_bytes(key), partition, report, timestamp, headers)

    def poll(self, timeout: float = -1) -> int:
        """Serves what is to be report, after waiting for it."""
        self._sender.step("poll")
        return self._sender.poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Waits until everything is delivered; returns what is not."""
        self._sender.step("flush")
        return self._sender.flush(FOREVER if timeout < 0 else timeout)

    def purge(self, **_: Any) -> None:
        """Throws away what is queued."""
        self._sender.purge()

    def init_transactions(self, timeout: float = -1) -> None:
        """Takes the transactional id."""
        self._sender.step("init_transactions")
        self._sender.initialise(FOREVER if timeout < 0 else timeout)

    def begin_transaction(self) -> None:
        """Begins."""
        self._sender.step("begin_transaction")
        self._sender.begin()

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """Has offsets be committed with the transaction."""
        self._sender.step("send_offsets_to_transaction")
        self._sender.send_offsets(positions, group_metadata, FOREVER if timeout < 0 else timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commits."""
        self._sender.step("commit_transaction")
        self._sender.end(FOREVER if timeout < 0 else timeout, commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Aborts."""
        self._sender.step("abort_transaction")
        self._sender.end(FOREVER if timeout < 0 else timeout, commit=False)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        """What the brokers say of topics."""
        self._sender.step("list_topics")
        return cluster_metadata(self._sender, topic, FOREVER if timeout < 0 else timeout)
