"""Commands over HTTP: keys, links to what became of them, batches, and how many may be under way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI

from leftfold import memory
from leftfold.errors import InfrastructureError, OutcomeUnknown
from leftfold.http import Access, Principal, gateway, hash_of, router
from leftfold.http.batches import MOST_SENDING, _BatchSender
from leftfold.http.command_routes import CommandRoutes, _Sent
from leftfold.http.routes import _MOST_READS, FirstConnection, ProblemRoute, _reads
from leftfold.http.stream_routes import add_stream
from leftfold.memory import World
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from tests.domains.shop import Open, app, baskets
from tests.http.calls import ADD, BASKETS, NDJSON, NOW, OPEN, StandIn, called, client_of, problem_in
from tests.waiting import WAIT_SECONDS


def test_a_command_is_decided_once_for_each_key_and_answered_with_a_position() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        first = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
        again = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
        assert first.status_code == again.status_code == 200, first.text
        assert first.json() == again.json()
        assert (first.json()["id"], first.json()["version"], first.headers["ETag"]) == ("one", 1, '"1"')
        assert first.headers["Leftfold-Position"] == first.json()["position"]
        added = await http.post(f"{BASKETS}/Add", json={**ADD, "price": "2.50"}, headers={"If-Match": '"1"'})
        assert added.json()["version"] == 2
        row = await http.get("/views/open_baskets/b", params={"after": added.json()["position"]})
        assert row.status_code == 200, row.text
        assert row.json()["total"] == "2.50"

    called(calls)


def test_a_batch_is_answered_line_by_line_in_order() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        lines = [json.dumps({"basket_id": f"b{n}", "household": "h"}).encode() for n in range(450)]
        lines[3] = b'{"basket_id":7}'
        answer = await http.post(f"{BASKETS}/Open:batch", content=b"\n".join(lines), headers=NDJSON)
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert len(found) == 450
        assert (found[3]["status"], found[3]["title"]) == (400, "the request is malformed")
        assert all(one["version"] == 1 for number, one in enumerate(found) if number != 3)
        rejected = await http.post(f"{BASKETS}/Add:batch", content=json.dumps({**ADD, "price": "200"}), headers=NDJSON)
        assert json.loads(rejected.text)["error"] == "TooDear"

        much = json.dumps({f"{number:0300d}": 1 for number in range(3000)})
        wrong = await http.post(f"{BASKETS}/Add:batch", content=much, headers=NDJSON)
        assert (len(json.loads(wrong.text)["errors"]), len(wrong.content) < 20_000) == (20, True)

    called(calls)


class _Silent:
    """A client whose first answers do not come."""

    def __init__(self, world: World, silent: int) -> None:
        self._world, self._left, self.sent = world, silent, list[str | None]()

    async def asend(self, command: Command, /, *, id: str | None = None, **options: Any) -> Receipt:
        self.sent.append(id)
        receipt = await self._world.client.asend(command, id=id, **options)
        if self._left:
            self._left -= 1
            raise OutcomeUnknown(id or "")
        return receipt


@contextmanager
def silent_world(silent: int) -> Iterator[StandIn]:
    with memory(app, now=NOW) as world:
        yield StandIn(world, client=_Silent(world, silent))


def test_what_became_of_a_command_without_an_answer_is_shown_at_its_link_however_often() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        answer = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
        assert (answer.status_code, answer.headers["Location"]) == (202, f"{BASKETS}/Open/one")
        still = await http.get(answer.headers["Location"])
        assert still.status_code == 202
        known = await http.get(answer.headers["Location"])
        assert (known.status_code, known.json()["version"]) == (200, 1)
        again = await http.get(answer.headers["Location"])
        assert (again.status_code, again.json(), again.headers["ETag"]) == (200, known.json(), '"1"')

    with silent_world(2) as world:
        called(calls, lambda _: gateway([(app, world)]))
        assert world.client.sent == ["one"] * 3


def test_a_link_leads_to_the_command_also_below_a_prefix() -> None:
    async def run(world: Any) -> None:
        api = FastAPI()
        api.include_router(router(app, world), prefix="/shop")
        async with client_of(api) as http:
            answer = await http.post(f"/shop{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "a b"})
            assert (answer.status_code, answer.headers["Location"]) == (202, f"/shop{BASKETS}/Open/a%20b")
            still = await http.get(answer.headers["Location"])
            assert (still.status_code, still.headers["Location"]) == (202, answer.headers["Location"])
            assert (await http.get(answer.headers["Location"])).json()["version"] == 1

    with silent_world(2) as world:
        asyncio.run(run(world))


def test_a_link_sends_no_command_again_whose_first_answer_may_be_forgotten() -> None:
    """Answers are kept for 60 seconds, and what is sent again may take 30 of them to reach the log."""
    times = [0.0]

    async def run(world: Any) -> None:
        async with asked_of(world.client, world, clock=lambda: times[-1]) as http:
            link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})).json()["status"]
            for now, status in ((29.0, 202), (30.0, 202), (31.0, 404), (1e6, 404)):
                times.append(now)
                assert (await http.get(link)).status_code == status
            for now in (0.0, 50.0):  # sent again with its key, which is no other command
                times.append(now)
                link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "two"})).json()[
                    "status"
                ]
            times.append(75.0)
            problem_in(await http.get(link), 404)
        assert world.client.sent == ["one"] * 3 + ["two"] * 2

    with silent_world(10) as world:
        asyncio.run(run(world))


def test_commands_whose_outcome_is_not_known_are_remembered_up_to_a_size_without_those_that_still_run() -> None:
    async def run() -> None:
        routes = CommandRoutes(FirstConnection(lambda: pytest.fail("it is not asked for")), Access())
        running: asyncio.Future[Receipt] = asyncio.Future()
        sent = _Sent("path", "runs", Open(basket_id="b", household="h"), None, "", 1_048_576, 0.0)
        routes._remember(sent._replace(task=cast("Any", running)))
        for number in range(200):
            routes._remember(sent._replace(id=str(number // 2)))
        assert [one.id for one in routes._remembered.values()] == ["runs", *map(str, range(37, 100))]
        running.cancel()
        routes._remember(sent._replace(id="100"))
        assert [one.id for one in routes._remembered.values()] == [*map(str, range(37, 101))]
        assert routes._bytes == 64 * 1_048_576

    asyncio.run(run())


def in_world(run: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    with memory(app, now=NOW) as world:
        asyncio.run(run(world))


class _Unreachable:
    """A client whose broker is not reachable for its first commands."""

    def __init__(self, world: World) -> None:
        self._world, self.is_down = world, True

    async def asend(self, command: Command, /, **options: Any) -> Receipt:
        if self.is_down:
            raise InfrastructureError("no broker answers")
        return await self._world.client.asend(command, **options)


def test_a_link_asks_again_for_a_command_that_could_not_be_sent() -> None:
    async def run(world: World) -> None:
        client = _Unreachable(world)
        async with asked_of(client, world) as http:
            headers = {"Prefer": "respond-async", "Idempotency-Key": "one"}
            link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers=headers)).headers["Location"]
            problem_in(await http.get(link), 503)
            client.is_down = False
            assert (await http.get(link)).json()["version"] == 1

    in_world(run)


class _Held:
    """A client whose commands, or batches, take until they are released."""

    def __init__(self, world: World) -> None:
        self._world, self.released = world, threading.Event()
        self.chunks: list[int] = []

    async def asend(self, command: Command, /, **options: Any) -> Receipt:
        if getattr(command, "household", "") == "held":
            await asyncio.to_thread(self.released.wait, WAIT_SECONDS)
        return await self._world.client.asend(command, **options)

    def send_many(self, commands: Sequence[Command], **options: Any) -> Any:
        self.chunks.append(len(commands))
        self.released.wait(WAIT_SECONDS)
        return self._world.client.send_many(commands, **options)


@asynccontextmanager
async def asked_of(client: Any, world: World, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Calls to the routes of one command class and to the streams."""
    routes = CommandRoutes(FirstConnection(lambda: client), Access(), **options)
    api, found = FastAPI(), APIRouter(route_class=ProblemRoute)
    routes.add(found, Open, "open")
    add_stream(found, baskets, world.stream, Access())
    api.include_router(found)
    async with client_of(api) as http:
        yield http
    await routes.close()


@pytest.mark.parametrize("limit", [{"most": 2}, {"most_bytes": 100}])
def test_only_so_many_commands_are_under_way_that_no_request_waits_for(limit: dict[str, int]) -> None:
    async def run(world: World) -> None:
        client = _Held(world)
        async with asked_of(client, world, **limit) as http:

            async def later(key: str) -> httpx.Response:
                body = {"basket_id": key, "household": "held"}
                return await http.post(f"{BASKETS}/Open", json=body, headers={"Prefer": "respond-async"})

            links = [(await later(key)).headers["Location"] for key in ("a", "b")]
            refused = await later("c")
            assert (problem_in(refused, 503)["title"], refused.headers["Retry-After"]) == ("not available", "1")
            assert (await http.post(f"{BASKETS}/Open", json=OPEN)).status_code == 200, "those that wait are sent"
            client.released.set()
            assert [(await http.get(link)).status_code for link in links] == [200, 200]
            assert (await later("c")).status_code == 202

    in_world(run)


@pytest.mark.parametrize("limited", [True, False])
def test_batches_whose_commands_take_long_leave_threads_for_the_reads_of_others(limited: bool) -> None:
    """The twin without their limit takes every thread."""

    async def run(world: World) -> None:
        client = _Held(world)
        async with asked_of(client, world, **({} if limited else {"sending": 1000})) as http:
            threads = current_default_thread_limiter()
            count = int(threads.total_tokens)
            sent = [
                asyncio.ensure_future(http.post(f"{BASKETS}/Open:batch", content=json.dumps(OPEN), headers=NDJSON))
                for _ in range(count)
            ]
            try:
                while len(client.chunks) < (MOST_SENDING if limited else count):  # noqa: ASYNC110  # in threads
                    await asyncio.sleep(0.001)
                if limited:
                    problem_in(await http.get("/streams/baskets/b"), 404)
                assert (threads.available_tokens > 0) is limited
                assert (await http.post(f"{BASKETS}/Open", json=OPEN)).status_code == 200
            finally:
                client.released.set()
            assert {answer.status_code for answer in await asyncio.gather(*sent)} == {200}
            again = await http.post(f"{BASKETS}/Open:batch", content=json.dumps(OPEN), headers=NDJSON)
            assert json.loads(again.text)["version"] == 1

    in_world(run)


def test_only_so_many_batches_are_open_at_once() -> None:
    async def run(world: World) -> None:
        client = _Held(world)
        async with asked_of(client, world, batches=1) as http:
            batch = partial(http.post, f"{BASKETS}/Open:batch", content=json.dumps(OPEN), headers=NDJSON)
            first = asyncio.ensure_future(batch())
            while not client.chunks:  # noqa: ASYNC110  # it is in a thread
                await asyncio.sleep(0.001)
            refused = await batch()
            client.released.set()
            assert (problem_in(refused, 503)["status"], refused.headers["Retry-After"]) == (503, "1")
            assert {(await first).status_code, (await batch()).status_code} == {200}

    in_world(run)


def test_a_line_is_sent_though_its_sender_waits_for_the_answer_before_the_next_one() -> None:
    """Also where that answer takes longer than the next part may."""

    async def run(world: World) -> None:
        answered, client = asyncio.Event(), cast("Any", _Held(world))
        releasing = threading.Timer(2.5, client.released.set)
        releasing.start()

        async def lines() -> AsyncGenerator[list[bytes], None]:
            for key in "bc":
                yield [json.dumps({**OPEN, "basket_id": key}).encode()]
                await answered.wait()

        sender = _BatchSender(client, Open, Principal(), Access(), iter("12"), 10.0, asyncio.Semaphore(), 2.0)
        answers = sender.send(lines())
        assert json.loads(await anext(answers))["id"] == "1"
        answered.set()
        assert [json.loads(line)["id"] async for line in answers] == ["2"]
        releasing.join()

    in_world(run)


def test_streams_that_take_long_to_read_leave_threads_for_batches() -> None:
    async def run(world: World) -> None:
        released = threading.Event()

        class Slow:
            def stream(self, category: str, key: str) -> Any:
                def events() -> Any:
                    released.wait(WAIT_SECONDS)
                    yield from world.stream(category, key)

                return events()

        client = _Held(world)
        client.released.set()
        async with asked_of(client, Slow()) as http:  # type: ignore[arg-type]  # no more of it is asked for
            assert (await http.post(f"{BASKETS}/Open", json=OPEN)).status_code == 200
            reads = [asyncio.ensure_future(http.get("/streams/baskets/b")) for _ in range(_MOST_READS)]
            try:
                while len(_reads) < _MOST_READS:  # noqa: ASYNC110  # until all of them are asked for
                    await asyncio.sleep(0)
                problem_in(await http.get("/streams/baskets/b"), 503)
                url = f"{BASKETS}/Open:batch"
                assert (await http.post(url, content=json.dumps(OPEN), headers=NDJSON)).status_code == 200
                assert not any(read.done() for read in reads)
            finally:
                released.set()
            assert {answer.status_code for answer in await asyncio.gather(*reads)} == {200}

    in_world(run)


def test_a_batch_ends_with_the_token_of_its_caller() -> None:
    async def run(world: World) -> None:
        async def lines() -> AsyncGenerator[list[bytes], None]:
            yield [json.dumps(OPEN).encode()]

        expired = Principal("ann", claims={"exp": 1.0})
        sender = _BatchSender(world.client, Open, expired, Access(), iter("ab"), 10.0, asyncio.Semaphore())
        (last,) = [json.loads(line) async for line in sender.send(lines())]
        assert (last["status"], last["detail"]) == (401, "the token has expired; nothing from here on was sent")
        assert not list(world.stream("baskets", "b"))

    in_world(run)


def test_long_lines_are_sent_before_two_hundred_of_them_are_in_memory() -> None:
    async def run(world: World) -> None:
        client = _Held(world)
        client.released.set()
        async with asked_of(client, world) as http:
            line = json.dumps({**OPEN, "household": "h" * 100_000})
            answer = await http.post(f"{BASKETS}/Open:batch", content="\n".join([line] * 50), headers=NDJSON)
            assert (len(answer.text.splitlines()), sum(client.chunks), max(client.chunks)) == (50, 50, 11)

    in_world(run)


def test_a_link_of_one_command_tells_nothing_of_another() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        headers = {"Prefer": "respond-async", "Idempotency-Key": "a/b c"}
        link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers=headers)).headers["Location"]
        assert link == f"{BASKETS}/Open/a/b%20c"
        problem_in(await http.get(f"{BASKETS}/Add/a/b%20c"), 404)
        assert (await http.get(link)).json()["id"] == "a/b c"

    called(calls)


def test_a_link_tells_nothing_to_another_caller() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        headers = {"Prefer": "respond-async", "Idempotency-Key": "one", "X-API-Key": "ann's"}
        link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers=headers)).headers["Location"]
        problem_in(await http.get(link, headers={"X-API-Key": "bob's"}), 404)
        assert (await http.get(link, headers={"X-API-Key": "ann's"})).json()["version"] == 1
        # With the same key he hides no link of hers, and she cannot use it for another command.
        await http.post(f"{BASKETS}/Open", json=OPEN, headers={**headers, "X-API-Key": "bob's"})
        assert (await http.get(link, headers={"X-API-Key": "ann's"})).json()["version"] == 1
        for given in (headers, {name: value for name, value in headers.items() if name != "Prefer"}):
            other = await http.post(f"{BASKETS}/Open", json={**OPEN, "household": "i"}, headers=given)
            assert "Idempotency-Key of another command" in problem_in(other, 409)["detail"]

    called(calls, access=Access({hash_of("ann's"): "ann", hash_of("bob's"): "bob"}))
