"""A broker with the topics of the trade, its workers and a router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from tests.domains.trade import app
from tests.process.children import ChildProcess, StartChild
from tests.servers import Addresses


@pytest.fixture(scope="module")
def settings(empty_servers: Addresses) -> KafkaSettings:
    """How to reach a broker with the topics of the trade, which allows short sessions."""
    settings = KafkaSettings(bootstrap_servers=empty_servers.kafka)
    ensure(app, settings)
    return settings


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartChild]:
    """Starts parts of the trade, and kills what is left of them in the end."""
    numbers = count(1)
    with ExitStack() as running:
        yield lambda child: running.enter_context(ChildProcess(child, tmp_path / f"child{next(numbers)}.jsonl"))
