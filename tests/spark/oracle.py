"""What rows must be: the committed events of the log, and the folds of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from leftfold.client import Views
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.model.keys import events
from leftfold.model.view import View
from leftfold.ports.bulk import BulkLog
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.ports.protocols import ViewStore
from leftfold.testing import fold
from tests.domains.ledger import ledgers
from tests.settled import read_settled
from tests.spark.conftest import Shop

__all__ = ["events_of", "logged", "truth"]


def logged(shop: Shop) -> list[Any]:
    return events_of(KafkaBulkLog(shop.kafka), events(ledgers.name))


def truth(shop: Shop, view: View[Any, Any], store: ViewStore | None = None) -> dict[Any, Any]:
    """The fold in memory of everything that a view has not parked, in the shop's store or in another one."""
    parked = Views(store or shop.store)[view].describe().parked
    return dict(fold(view, *(event for event in logged(shop) if event.ledger not in parked)))


def events_of(log: BulkLog, topic: str, kinds: Collection[Any] = ledgers.events) -> list[Any]:
    """Every committed event of a topic, from a log that is closed then."""
    codec = MessageCodec[Any](kinds)
    found = (read_recorded(codec, record) for record in read_settled(log, topic))
    return [recorded.event for recorded in found if recorded is not None]
