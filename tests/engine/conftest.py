"""Worlds with a history of ledgers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leftfold.memory import World
from tests.domains.ledger_world import ledger_world


@pytest.fixture
def world() -> Iterator[World]:
    """A history that every view folds."""
    with ledger_world(120) as world:
        yield world


@pytest.fixture
def poisoned_world() -> Iterator[World]:
    """A history with events at which the fold of the summary fails."""
    with ledger_world(200, poison=0.03) as world:
        yield world
