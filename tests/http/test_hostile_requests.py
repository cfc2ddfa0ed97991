"""Requests that are odd, hostile or merely unusual, to a gateway in memory and to a router in another application."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI, Request

from leftfold import App, FoldView, memory
from leftfold.errors import InfrastructureError
from leftfold.http import Access, Permission, Principal, gateway, hash_of, router
from leftfold.http.routes import FirstConnection
from leftfold.memory import World
from tests.domains.shop import CheckedOut, Spend, baskets, household_spend, open_baskets, spend
from tests.domains.shop import app as shop
from tests.http.calls import (
    JSON,
    NDJSON,
    NOW,
    OPEN,
    OPEN_PATH,
    Broken,
    Calls,
    StandIn,
    called,
    check_out,
    client_of,
    open_basket,
    problem_in,
)
from tests.waiting import WAIT_SECONDS


def place(event: CheckedOut) -> tuple[str, str]:
    """A key of two parts."""
    return event.household, event.basket_id


places = FoldView("places", events=CheckedOut, row=Spend, key=place, evolve=spend)
app = App("shop", partitions=4, deciders=[baskets], views=[open_baskets, household_spend, places])
Call: TypeAlias = Callable[[Calls], None]


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    """Makes calls to one gateway, for cases that have keys of their own."""
    with memory(app, now=NOW) as world, asyncio.Runner() as runner:
        api = gateway([(app, world)])

        async def run(calls: Calls) -> None:
            async with client_of(api) as http:
                await calls(http)

        yield lambda calls: runner.run(run(calls))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 200_000, 400),
        (b'{"basket_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"basket_id": "b", "household": ' + b"9" * 10_000 + b"}", 400),
        (b'{"basket_id": "b", "household": "\xff\xfe"}', 400),
        (b'{"basket_id": "b", "household": "\\ud800"}', 400),
        (b'{"basket_id": "b", "household": "\\ud83d\\ude00"}', 200),
        (b'{"basket_id": "b", "household": "h", "\\ud800": 1}', 400),
        (b'{"basket_id": "\\u0000", "household": "\\u0000"}', 200),
        (b'{"basket_id": "a", "household": "h", "basket_id": "b"}', 200),
        (b'{"basket_id": "", "household": "h"}', 400),
        (b'{"basket_id": NaN, "household": "h"}', 400),
        (b"null", 400),
        (b"", 400),
    ],
    ids=[
        "depth",
        "depth within",
        "number",
        "bytes",
        "surrogate",
        "pair",
        "name",
        "NUL",
        "twice",
        "empty",
        "NaN",
        "null",
        "none",
    ],
)
def test_odd_bodies_have_an_answer_and_the_gateway_lives_on(body: bytes, status: int, call: Call) -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        answer = await http.post(OPEN_PATH, content=body, headers=JSON)
        assert answer.status_code == status, answer.text
        batch = await http.post(f"{OPEN_PATH}:batch", content=body.replace(b"\n", b""), headers=NDJSON)
        assert batch.status_code == 200
        assert all(json.loads(line) for line in batch.content.splitlines())
        assert (await open_basket(http, "next")).status_code == 200

    call(calls)


def test_an_answer_is_not_larger_than_a_request_with_thousands_of_errors() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        body = {f"{number:0300d}": 1 for number in range(3000)}
        answer = await http.post(OPEN_PATH, json=body)
        assert len(problem_in(answer, 400)["errors"]) == 20
        assert len(answer.content) < 20_000

    called(calls)


def test_a_body_of_another_type_is_answered_with_the_right_one() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        answer = await http.post(OPEN_PATH, data={"basket_id": "b"})
        assert "Content-Type: application/json" in problem_in(answer, 415)["detail"]

    called(calls)


@pytest.mark.parametrize("key", ["ä/ö", "a/b", "50%", "a%2Fb", "?#&=+", "日本", "a b", "~", "/", "%"])
def test_a_key_of_any_text_is_found_where_answers_name_it(key: str, call: Call) -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        assert (await open_basket(http, key)).status_code == 200
        (entry,) = [row for row in (await http.get("/views/open_baskets")).json()["rows"] if row["key"] == key]
        for quoted in {quote(key, safe=""), quote(key, safe="/")}:
            assert (await http.get(f"/views/open_baskets/{quoted}")).json() == entry["row"]
            assert (await http.get(f"/streams/baskets/{quoted}")).json()["key"] == key

    call(calls)


@pytest.mark.parametrize(
    "key", ["a\nb", "b\n", "\n", "\r\nX: y", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "", "//"]
)
def test_a_key_with_control_characters_has_its_own_row_and_no_line_in_a_log(
    key: str, call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    path = quote(key, safe="")

    async def calls(http: httpx.AsyncClient) -> None:
        for other, price in (("a", "10"), ("b", "20"), (key or "c", "3")):
            body = {"basket_id": other, "product": "milk", "price": price}
            assert (await http.post("/commands/baskets/Add", json=body)).status_code == 200
        for headers in ({}, {"X-Unusual": "takes the long way"}):
            row = await http.get(f"/views/open_baskets/{path}", headers=headers)
            assert row.json()["total"] == "3" if key else problem_in(row, 400)
        stream = await http.get(f"/streams/baskets/{path}")
        assert stream.json()["key"] == key if key else problem_in(stream, 404)
        later = {"Idempotency-Key": "one", "Prefer": "respond-async"}
        await http.post(OPEN_PATH, json={"basket_id": "d", "household": "h"}, headers=later)
        for unknown in (f"{OPEN_PATH}/one{path}" if key else f"{OPEN_PATH}/", f"/views{path}x/nothing/{path}"):
            problem_in(await http.get(unknown), 404)
        for wrong in (f"after={path}+", f"cursor={path}x", f"fields={path}"):
            problem_in(await http.get(f"/views/open_baskets?{wrong}"), 400)

    call(calls)
    assert not [record for record in caplog.records if key and key in record.getMessage()]


def test_a_path_with_a_newline_at_its_end_is_another_path() -> None:
    """A proxy that keeps callers from a path does not keep them from that one."""

    async def calls(http: httpx.AsyncClient) -> None:
        for path in ("/views/open_baskets", "/views/open_baskets:count", "/health/live", "/metrics"):
            assert (await http.get(path)).status_code == 200
            problem_in(await http.get(f"{path}%0A"), 404)
        problem_in(await http.post(f"{OPEN_PATH}%0A", json={"basket_id": "b", "household": "h"}), 404)

    called(calls, metrics=lambda: b"")


@pytest.mark.parametrize(("household", "basket"), [("h", "whole"), ("h/1", "b/2"), ("ä%2F", "100%"), ("h", "a/b/c")])
def test_a_key_of_two_parts_is_found_part_by_part_and_as_answers_name_it(
    household: str, basket: str, call: Call
) -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await check_out(http, basket, household)
        parts = f"{quote(household, safe='')}/{quote(basket, safe='')}"
        assert parts in {row["key"] for row in (await http.get("/views/places")).json()["rows"]}
        for path in (parts, quote(parts, safe="")):
            assert (await http.get(f"/views/places/{path}")).status_code == 200, path
        problem_in(await http.get("/views/places/one"), 400)

    call(calls)


def test_a_rule_is_asked_for_the_key_whose_row_is_read() -> None:
    """However the path is written, also with the / in front of the key quoted."""
    asked: list[str | None] = []

    def own(principal: Principal, permission: Permission) -> bool:
        asked.append(permission.key)
        return permission.kind == "command" or (permission.key or "").partition("/")[0] == "h-1"

    async def calls(http: httpx.AsyncClient) -> None:
        await check_out(http, "b/2", "h-1")
        await check_out(http, "b", "h-2")
        del asked[:]
        assert (await http.get("/views/places/h-1/b%2F2")).status_code == 200
        assert (await http.get("/views/places/h-1%2Fb%252F2")).status_code == 200
        problem_in(await http.get("/views/places/h-2/b"), 403)
        assert asked == ["h-1/b%2F2", "h-1/b%2F2", "h-2/b"]
        problem_in(await http.get("/views%2Fplaces/h-1/h-2/b"), 404)
        problem_in(await http.get("/views%2Fplaces/h-2%2Fb"), 403)

    called(calls, app=app, access=Access(authorize=own))


def test_lines_of_another_type_are_refused_since_a_page_of_any_site_may_send_them() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        line = json.dumps({"basket_id": "b", "household": "h"})
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "text/plain; application/x-ndjson"}):
            answer = await http.post(f"{OPEN_PATH}:batch", content=line, headers=headers)
            assert "Content-Type: application/x-ndjson" in problem_in(answer, 415)["detail"]
        assert (await http.get("/streams/baskets/b")).status_code == 404
        named = {"Content-Type": "Application/X-NDJSON; charset=utf-8"}
        assert json.loads((await http.post(f"{OPEN_PATH}:batch", content=line, headers=named)).content)["version"] == 1

    called(calls)


class Skipping(asyncio.SelectorEventLoop):
    """A loop whose time can be put forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def test_the_time_that_commands_take_is_not_that_of_the_next_part_of_a_batch() -> None:
    lines = [json.dumps({"basket_id": f"b{number}", "household": "h"}).encode() + b"\n" for number in range(201)]

    async def parts() -> AsyncIterator[bytes]:
        yield b"".join(lines[:200])
        await asyncio.sleep(0)
        yield lines[200]

    async def run(world: World, loop: Any) -> None:
        def send_many(*values: Any, **options: Any) -> Any:
            loop.skipped += 100.0
            return world.client.send_many(*values, **options)

        slow = StandIn(world, client=StandIn(world.client, send_many=send_many))
        async with client_of(gateway([(app, slow)])) as http:
            answer = await http.post(f"{OPEN_PATH}:batch", content=parts(), headers=NDJSON)
            assert [json.loads(line).get("version") for line in answer.content.splitlines()] == [1] * 201

    with memory(app, now=NOW) as world, asyncio.Runner(loop_factory=Skipping) as runner:
        runner.run(run(world, runner.get_loop()))


def test_the_bodies_of_all_requests_together_have_a_limit() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        release, held = asyncio.Event(), 0

        async def body(key: int) -> AsyncIterator[bytes]:
            nonlocal held
            held += 1
            text = json.dumps({"basket_id": f"b{key}", "household": "h"}).encode()
            yield text.ljust(99)
            await release.wait()
            yield b""

        asked = [asyncio.ensure_future(http.post(OPEN_PATH, content=body(n), headers=JSON)) for n in range(300)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert problem_in(done.pop().result(), 503)["detail"].startswith("the bodies of all requests together")
        release.set()
        statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
        assert (statuses.count(200), statuses.count(503), held) == (258, 42, 300)
        assert (await open_basket(http, "next")).status_code == 200, "what is answered is held no more"

    called(calls, max_bytes=100)


def test_requests_that_wait_for_a_connection_share_one_attempt_and_the_next_tries_again() -> None:
    attempts, release = list[int](), threading.Event()

    def connect() -> str:
        attempts.append(len(attempts))
        release.wait(WAIT_SECONDS)
        if len(attempts) == 1:
            raise InfrastructureError("no server")
        return "connected"

    async def calls() -> None:
        first = FirstConnection(connect)
        asked = [asyncio.ensure_future(first.client()) for _ in range(20)]
        await asyncio.sleep(0)  # all of them have asked
        asked[0].cancel()
        release.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [asyncio.CancelledError] + [InfrastructureError] * 19
        assert [await first.client() for _ in range(3)] == ["connected"] * 3
        assert len(attempts) == 2

    asyncio.run(calls())


def test_an_error_that_leftfold_does_not_know_is_a_problem_without_its_text() -> None:
    async def calls() -> None:
        api = gateway([(app, Broken(ValueError("a secret")))])
        async with client_of(api, raise_app_exceptions=False) as http:
            for path in ("/views/open_baskets/b", "/streams/baskets/b"):
                answer = await http.get(path)
                assert problem_in(answer, 500)["title"] == "internal error"
                assert "secret" not in answer.text

    asyncio.run(calls())


def test_a_router_in_another_application_answers_problems_and_leaves_its_own_routes_alone() -> None:
    def make(world: World) -> FastAPI:
        api = FastAPI()
        api.include_router(router(app, world, access=Access({hash_of("secret"): "shop"})), prefix="/shop")
        api.include_router(
            router(app, Broken(InfrastructureError("no server"))), prefix="/down", include_in_schema=False
        )

        @api.get("/own/{number}")
        async def own(number: int) -> int:
            return number

        return api

    async def calls(http: httpx.AsyncClient) -> None:
        problem_in(await http.get("/shop/views/open_baskets/b"), 401)
        http.headers["X-API-Key"] = "secret"
        problem_in(await http.get("/shop/views/open_baskets/b"), 404)
        problem_in(await http.put("/shop/views/open_baskets/b"), 405)
        problem_in(await http.post(f"/shop{OPEN_PATH}", content=b"{", headers=JSON), 400)
        problem_in(await http.post(f"/shop{OPEN_PATH}", content=b"x"), 415)
        problem_in(await http.get("/down/views/open_baskets/b"), 503)
        assert (await http.post(f"/shop{OPEN_PATH}", json={"basket_id": "a/b", "household": "h"})).status_code == 200
        assert (await http.get("/shop/views/open_baskets/a%2Fb")).status_code == 200
        await http.post("/shop/commands/baskets/CheckOut", json={"basket_id": "a/b"})
        assert (await http.get("/shop/views/places/h/a%2Fb")).status_code == 200
        assert (await http.head("/shop/views/places/h/a%2Fb")).content == b""
        assert (await http.get("/own/x")).json()["detail"][0]["type"] == "int_parsing"
        assert (await http.get("/nowhere")).json() == {"detail": "Not Found"}
        document = (await http.get("/openapi.json")).json()
        for reference in set(json.dumps(document).split('"$ref": "')[1:]):
            name = reference.partition('"')[0].removeprefix("#/components/schemas/")
            assert name in document["components"]["schemas"], name

    called(calls, make, app=app)


def test_a_body_has_a_time_limit_also_where_a_path_only_looks_like_a_batch() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        async def never() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

        for path in ("/own/import:batch", "/health/live:batch"):
            answer = await http.post(path, content=never(), headers=NDJSON)
            assert answer.status_code == (408 if path.startswith("/own") else 404), answer.text

    def make(world: World) -> FastAPI:
        api = gateway([(shop, world)], body_seconds=0.2)

        @api.post("/own/import:batch")
        async def own(request: Request) -> str:
            return (await request.body()).decode()

        return api

    called(calls, make)


def test_a_line_without_an_end_is_not_read_to_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        read = 0

        async def body() -> Any:
            nonlocal read
            yield json.dumps(OPEN).encode() + b"\n"
            for _ in range(100):
                read += 100_000
                yield b"x" * 100_000

        answer = await http.post(f"{OPEN_PATH}:batch", content=body(), headers=NDJSON)
        first, last = map(json.loads, answer.text.splitlines())
        assert (first["version"], last["status"], read < 2_000_000) == (1, 413, True)

    called(calls)
