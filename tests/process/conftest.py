"""A broker with the topics of the trade, its workers and a router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.topics import ensure
from leftfold.local import LocalSettings, embedded
from tests.core.trade import app
from tests.process.children import ChildProcess, StartChild


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """How to reach a broker of this module's own, which allows short sessions."""
    short = LocalSettings(kafka_properties={"group.min.session.timeout.ms": "500"})
    with embedded(tmp_path_factory.mktemp("kafka"), settings=short, want=frozenset({"kafka"})) as servers:
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        ensure(app, settings)
        yield settings


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartChild]:
    """Starts parts of the trade, and kills what is left of them in the end."""
    numbers = count(1)
    with ExitStack() as running:
        yield lambda child: running.enter_context(ChildProcess(child, tmp_path / f"child{next(numbers)}.jsonl"))
