"""What waits in Faust's queues is still there when Faust says once more that streams go on."""

from __future__ import annotations

import asyncio

import pytest
from mode.utils.queues import FlowControlEvent

from leftfold.faust.apps import faust_app


@pytest.mark.parametrize("ours", [True, False])
def test_what_waits_is_not_forgotten_when_streams_are_told_twice_to_go_on(ours: bool) -> None:
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
