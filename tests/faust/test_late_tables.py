"""A stream whose tables' topics were made just now joins once the brokers know them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from faust.transport.drivers import aiokafka as driver

from leftfold import InfrastructureError
from leftfold.faust import transport
from leftfold.faust.transport import CommittedThread
from tests.faust.sales import expected
from tests.faust.test_windows import tills
from tests.faust.tills import Tills, by, keeping, running
from tests.waiting import wait_until

__all__ = ["tills"]

pytestmark = pytest.mark.servers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Brokers make the topic of a table only once this is set."""
    asked, create, making = threading.Event(), driver.Producer.create_topic, list[asyncio.Task[None]]()

    async def create_later(self: Any, *args: Any, **options: Any) -> None:
        async def make() -> None:
            while not asked.is_set():  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(0.05)
            await create(self, *args, **options)

        making.append(asyncio.create_task(make()))

    monkeypatch.setattr(driver.Producer, "create_topic", create_later)
    return asked


def test_a_stream_waits_for_the_topics_of_its_tables(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = transport._unknown

    async def notice(client: Any, topics: set[str]) -> list[str]:
        missing = await unknown(client, topics)
        if missing:
            asked.set()
        return missing

    monkeypatch.setattr(transport, "_unknown", notice)
    with keeping(tills, by(21), 21):
        assert asked.is_set()
        assert tills.rows(21) == expected(tills.committed)


def test_brokers_that_never_know_a_table_are_named(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_KNOWN_SECONDS", 0.0)
    with running(tills, by(22)) as failures:
        wait_until(lambda: bool(failures), "the stream to give up")
    assert not asked.is_set()
    assert isinstance(failures[0], InfrastructureError)
    assert "windows-changelog" in str(failures[0])
    assert "leftfold doctor" in str(failures[0])


def test_twin_where_a_stream_does_not_wait_it_takes_them_for_empty(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_wait(self: CommittedThread, topics: set[str]) -> None:
        return None

    monkeypatch.setattr(CommittedThread, "_until_known", no_wait)
    with running(tills, by(23)) as failures:
        wait_until(lambda: bool(failures) or tills.is_live(23), "the stream to fail")
    assert not asked.is_set()
    assert "has 0 partitions" in str(failures[0])
