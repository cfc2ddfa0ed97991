"""What an agent changes in a table is on a broker before its events are committed, else the stream ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import faust
import pytest
from faust.transport.drivers import aiokafka as driver

from leftfold import ConfigurationError, InfrastructureError
from leftfold.faust import EventStreams, ExternalRows
from leftfold.faust.faust_app import faust_app
from leftfold.faust.transport import CommittedProducer
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.groups import Groups
from leftfold.model.position import Position
from tests.faust.sales import PARTITIONS, app, expected, lately_of, wired
from tests.faust.tills import Keep, Tills, by, keeping, running
from tests.servers import Addresses, alter_topic
from tests.waiting import wait_until

NARROW, WIDE = {"max.message.bytes": "100"}, {"max.message.bytes": "1048588"}
EVENTS = ["tills.events"]


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    tills = Tills(addresses)
    tills.write(tills.sales(40))
    yield tills
    tills.store.close()


class Narrow:
    """Keeps a version of the view, with a changelog that takes no change of the table before it is widened."""

    def __init__(self, tills: Tills, version: int, **settings: Any) -> None:
        self._tills, self._version, self._settings = tills, version, settings
        self.group = self.changelog = ""

    def __call__(self, tills: Tills, stop: threading.Event) -> None:
        rows = ExternalRows(lately_of(self._version), tills.store, {"tills.events": PARTITIONS})
        streams = EventStreams(app, "lately", tills.kafka.aiokafka(), rows=[rows], **self._settings)
        wired(streams, rows)
        self.group, self.changelog = streams.id, f"{streams.id}-windows-changelog"
        with ClusterAdmin(tills.kafka) as cluster:
            cluster.create(self.changelog, PARTITIONS, 1, {"cleanup.policy": "compact", **NARROW})
        streams.run(stop)

    def widen(self) -> None:
        alter_topic(self._tills.kafka, self.changelog, WIDE)

    def committed(self) -> Position:
        with Groups(self._tills.kafka) as groups:
            return groups.committed(self.group, EVENTS)


def refused(tills: Tills, keep: Keep, version: int, *, is_over: bool) -> BaseException:
    """What the stream ends with; `is_over`: it is to end once its rows are written."""
    with running(tills, keep) as failures:
        wait_until(lambda: bool(failures) or (is_over and tills.is_live(version)), "the refusal")
    (failure,) = failures
    return failure


@pytest.mark.servers
@pytest.mark.parametrize(
    ("version", "seconds"), [(31, 1.0), (32, 3600.0)], ids=["commits while it runs", "commits as it ends"]
)
def test_no_event_is_committed_whose_change_the_brokers_refuse(tills: Tills, version: int, seconds: float) -> None:
    narrow = Narrow(tills, version, broker_commit_interval=seconds)
    failure = refused(tills, narrow, version, is_over=seconds > 1)
    assert isinstance(failure, InfrastructureError)
    assert f"topic {narrow.changelog} lacks what a stream has changed" in str(failure)
    assert "raise max.message.bytes" in str(failure)
    assert narrow.committed() == Position()
    narrow.widen()
    tills.write(tills.sales(20))
    with keeping(tills, by(version), version):
        tills.write(tills.sales(20))
        assert tills.rows(version) == expected(tills.committed)
        wait_until(lambda: narrow.committed() != Position(), "the commit")


@pytest.mark.servers
def test_twin_where_the_producer_knows_no_change_the_counts_begin_again(
    tills: Tills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommittedProducer, "send_soon", driver.Producer.send_soon)
    narrow = Narrow(tills, 33)
    with keeping(tills, narrow, 33):
        assert tills.rows(33) == expected(tills.committed)
    assert narrow.committed() != Position()
    narrow.widen()
    tills.write(tills.sales(20))
    with keeping(tills, by(33), 33):
        assert tills.rows(33) != expected(tills.committed)


def test_a_stream_whose_changes_wait_when_it_crashes_still_stops() -> None:
    """Faust's own producer refuses to be flushed then, and the App's threads would run for ever."""

    async def stopped(kind: Any) -> None:
        app = faust_app("crashing", {"bootstrap_servers": "127.0.0.1:1"})
        producer = kind(app.transport)
        producer.buffer.pending.put_nowait("a change")
        await producer.buffer.crash(OSError("refused"))
        await producer.flush()

    asyncio.run(stopped(CommittedProducer))
    with pytest.raises(RuntimeError, match="Cannot flush"):
        asyncio.run(stopped(driver.Producer))


class Stuck:
    """A change that no broker answers."""

    def __init__(self) -> None:
        self.message = self.channel = self

    async def publish_message(self, change: Any, *, wait: bool) -> None:
        await asyncio.Event().wait()


def test_a_crash_while_changes_are_awaited_is_no_error_of_the_one_who_waits() -> None:
    """Faust's own buffer raises one, which would count as the reason of the crash."""

    async def waited(kind: Any) -> None:
        buffer = kind(faust_app("awaiting", {"bootstrap_servers": "127.0.0.1:1"}).transport).buffer
        for _ in range(2):
            buffer.pending.put_nowait(Stuck())
        async with buffer:
            waiting = asyncio.ensure_future(buffer.flush_atmost(None))
            await asyncio.sleep(0)
            await buffer.crash(OSError("refused"))
            buffer.message_sent.set()
            try:
                await waiting
            finally:
                buffer.pending = asyncio.Queue()

    asyncio.run(waited(CommittedProducer))
    with pytest.raises(RuntimeError, match="Cannot flush"):
        asyncio.run(waited(driver.Producer))


def test_the_first_reason_of_a_crash_is_the_one_that_is_reported() -> None:
    """Other parts fail since one has; Faust's own App names the last of them."""

    async def reason(app: Any) -> str:
        for error in (OSError("refused"), RuntimeError("not running")):
            await driver.Producer(app.transport, beacon=app.beacon).crash(error)
        return str(app.crash_reason)

    assert asyncio.run(reason(faust_app("reasons", {"bootstrap_servers": "127.0.0.1:1"}))) == "refused"
    assert asyncio.run(reason(faust.App("others", broker="kafka://127.0.0.1:1"))) == "not running"


def test_fausts_thread_for_changes_is_refused_since_it_reports_none() -> None:
    with pytest.raises(ConfigurationError, match="producer_threaded"):
        EventStreams(app, "threaded", {"bootstrap_servers": "127.0.0.1:1"}, producer_threaded=True)
