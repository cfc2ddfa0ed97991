"""Tests of query views begin without generations of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.domains.ledger import app
from tests.spark.conftest import Shop


@pytest.fixture
def forgotten(shop: Shop) -> Iterator[None]:
    """Leaves nothing of any view but those that the shop's projector keeps."""
    yield
    shop.forget(*shop.store.registered().views.difference(view.name for view in app.views))
