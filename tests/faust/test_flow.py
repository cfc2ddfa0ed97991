"""What Faust would do of itself and does not here: forget what waits, commit what is not written, leave directories."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP
from mode.utils.queues import FlowControlEvent

from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.faust import EventStreams
from leftfold.faust.faust_app import faust_app
from leftfold.faust.transport import FetchProgress
from leftfold.memory import MemoryViewStore
from tests.faust.sales import PARTITIONS, app, lately


@pytest.mark.parametrize("ours", [True, False])
def test_what_waits_is_not_forgotten_when_streams_are_asked_twice_to_continue(ours: bool) -> None:
    """The twin is Faust's own: an event in the middle of a partition would never reach its agent."""

    async def left() -> int:
        app = faust_app("twice", {"bootstrap_servers": "127.0.0.1:1"})
        flow: FlowControlEvent = app.flow_control if ours else FlowControlEvent()
        queue = app.FlowControlQueue(maxsize=9, clear_on_resume=True)
        queue.clear()
        flow.manage_queue(queue)
        flow.resume()
        queue.put_nowait("an event")
        flow.resume()
        return queue.qsize()

    assert asyncio.run(left()) == (1 if ours else 0)


@pytest.mark.parametrize("store", ["memory://", "rocksdb://"])
def test_directories_are_made_for_tables_on_disk_only(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = faust_app("kept", {"bootstrap_servers": "127.0.0.1:1"}, store=store)
    app.Table("counts")
    asyncio.run(app.on_first_start())
    assert [path.name for path in tmp_path.iterdir()] == ([] if store == "memory://" else ["kept-data"])


def test_what_is_read_again_once_it_is_done_is_not_waited_for() -> None:
    """Faust hands it on no more: no agent would ever say that it is done, and nothing behind it would be committed."""
    progress, tp = FetchProgress(), TP("tills.events", 0)

    def fetch(*offsets: int) -> None:
        found: list[Any] = [SimpleNamespace(offset=offset) for offset in offsets]
        progress.fetched({tp: offsets[-1] + 1}, {tp: found})

    fetch(*range(5, 10))
    for offset in (5, 6, 8):
        progress.done(tp, offset)
    fetch(*range(5, 8))
    assert progress.frontier(tp) == 7
    fetch(*range(8, 12))
    assert progress.frontier(tp) == 7
    progress.done(tp, 7)
    assert progress.frontier(tp) == 9
    for offset in (9, 10, 11):
        progress.done(tp, offset)
    fetch(*range(5, 7))
    fetch(*range(7, 12))
    assert progress.frontier(tp) == 12
    progress.forget()
    fetch(5)
    assert progress.frontier(tp) == 5, "a worker that holds the partition again begins again"


def test_no_offset_is_committed_behind_the_rows_when_markers_move_the_position() -> None:
    """A stream that ended there would start over: its rows would seem to lack events that are committed."""

    async def stream() -> None:
        rows = ExternalRows(lately, MemoryViewStore(), {"tills.events": PARTITIONS})
        streams = EventStreams(app, "lately", {"bootstrap_servers": "127.0.0.1:1"}, rows=[rows])
        consumer: Any = streams.faust.consumer
        tp, events = TP("tills.events", 0), [SimpleNamespace(offset=offset) for offset in range(5)]
        consumer.progress.fetched({tp: 6}, {tp: events})
        for event in events:
            streams._done(tp, event.offset)
        await streams._write()
        consumer.progress.fetched({tp: 7}, {})
        assert consumer._new_offset(tp) == rows.position().next_offset(*tp) == 6
        await streams._write()
        assert consumer._new_offset(tp) == rows.position().next_offset(*tp) == 7
        consumer._thread.thread_loop.close()
        streams.close()

    asyncio.run(stream())
