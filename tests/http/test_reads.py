"""Unusual requests that are answered as HTTP says: ETags, HEAD, origins, compression, limits, preferences."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from leftfold import App, FoldView, memory
from leftfold.client.reader import Reader
from leftfold.client.results import Entry
from leftfold.errors import ContractError
from leftfold.http import Access, gateway, hash_of
from leftfold.http.command_routes import _is_async
from leftfold.http.view_routes import TypedView
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.ports.queries import Matching
from tests.domains.ledger_world import rebuild
from tests.domains.shop import CheckedOut, Summary, app, baskets, household_spend, open_baskets
from tests.http.calls import (
    ADD,
    BASKETS,
    JSON,
    NDJSON,
    NOW,
    OPEN_PATH,
    StandIn,
    called,
    check_out,
    client_of,
    open_basket,
    problem_in,
)
from tests.waiting import WAIT_SECONDS


@dataclass(frozen=True)
class Account:
    limit: int
    timeout: int
    tier: str
    name: str = "ann"


accounts = FoldView(
    "accounts", events=CheckedOut, row=Account, indexes=("limit", "timeout", "tier", "name"),
    evolve=lambda row, event: Account(7, 8, event.household),
)  # fmt: skip


def test_an_index_may_have_the_name_of_a_query_parameter() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for number in range(3):
            await check_out(http, f"b{number}", "gold")
        last = (await http.get("/streams/baskets/b2")).json()["events"][-1]
        queries: list[dict[str, str]] = [{}, {"after": last["position"]}]
        for query in queries:
            found = (await http.get("/views/accounts", params={"tier": "gold", "limit": "2", **query})).json()
            assert ([one["key"] for one in found["rows"]], found["more"]) == (["b0", "b1"], True)
            assert (await http.get("/views/accounts:count", params={"tier": "gold", **query})).json() == {"count": 3}
        between = {"between": "limit", "at_least": "7"}
        assert len((await http.get("/views/accounts", params={**between, "limit": "2"})).json()["rows"]) == 2
        assert (await http.get("/views/accounts:count", params=between)).json() == {"count": 3}

    other = App("shop", partitions=4, deciders=[baskets], views=[accounts])

    called(calls, app=other)


class Tier(Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Graded:
    tier: Tier


graded = FoldView("graded", events=CheckedOut, row=Graded, indexes=["tier"], evolve=lambda row, event: Graded(Tier(2)))


def test_an_index_of_an_enum_is_searched_by_the_values_that_its_schema_names() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await check_out(http, "b", "h")
        for query, count in (({"tier": "2"}, 1), ({"between": "tier", "at_least": "1", "below": "2"}, 0)):
            assert (await http.get("/views/graded:count", params=query)).json() == {"count": count}
        problem_in(await http.get("/views/graded", params={"tier": "HIGH"}), 400)

    called(calls, app=App("shop", partitions=4, deciders=[baskets], views=[graded]))


def test_a_search_by_several_fields_keeps_no_other_request_waiting() -> None:
    """It reads all entries of each, however few rows are wanted."""
    is_read, released = threading.Event(), threading.Event()

    async def run(world: World) -> None:
        def held(question: Any) -> Any:
            if isinstance(question, Matching) and len(question.ranges) > 1:
                is_read.set()
                assert released.wait(WAIT_SECONDS)
            return world.views._store.ask(question)

        reader = Reader(accounts, cast("Any", StandIn(world.views._store, ask=held)))
        async with client_of(gateway([(shop, StandIn(world, views={accounts: reader}))])) as http:
            await check_out(http, "b", "gold")
            position = (await http.get("/streams/baskets/b")).json()["events"][-1]["position"]
            query = {"tier": "gold", "name": "ann", "after": position}
            for path in ("/views/accounts", "/views/accounts:count"):
                search = asyncio.ensure_future(http.get(path, params=query))
                while not (is_read.is_set() or search.done()):  # noqa: ASYNC110  # it is in a thread
                    await asyncio.sleep(0.001)
                assert (await http.get("/views/accounts/b")).status_code == 200
                assert is_read.is_set()
                assert not search.done()
                released.set()
                found = (await search).json()
                assert found.get("count", len(found.get("rows", ()))) == 1, found
                is_read.clear()
                released.clear()

    shop = App("shop", partitions=4, deciders=[baskets], views=[accounts])
    with memory(shop, now=NOW) as world:
        asyncio.run(run(world))


def test_the_same_version_in_another_generation_has_another_etag() -> None:
    """Other code may have folded it, with the same schema."""
    typed = TypedView(open_baskets)

    def etag(generation: str) -> str:
        return typed.headers_of(Entry(Summary(), 2, Position(), None, generation))["ETag"]

    assert etag("7-ab12") == '"2-7-ab12"'
    assert etag("8-cd34") != etag("7-ab12")


def test_a_view_as_of_a_place_is_read_by_its_name_and_does_not_change() -> None:
    worlds: list[World] = []

    def make(world: World) -> FastAPI:
        worlds.append(world)
        return gateway([(app, world)])

    async def calls(http: httpx.AsyncClient) -> None:
        (world,), view, march = worlds, "/views/household_spend", {"as_of": "march"}
        await check_out(http, "b1", "h1")
        before = await http.get(f"{view}/h1")
        rebuild(world, household_spend, pin="march").run()
        await http.post(OPEN_PATH, json={"basket_id": "b2", "household": "h1"})
        await http.post("/commands/baskets/Add", json={"basket_id": "b2", "product": "p", "price": "3"})
        await http.post("/commands/baskets/CheckOut", json={"basket_id": "b2"})
        await check_out(http, "b3", "h2")
        row = await http.get(f"{view}/h1", params=march)
        assert (row.status_code, row.json()) == (200, before.json())
        assert (await http.get(f"{view}/h1")).json() == {**row.json(), "total": "3"}
        problem_in(await http.get(f"{view}/h2", params=march), 404)
        assert (await http.get(f"{view}/h2")).status_code == 200
        assert (await http.get(view, params=march)).json()["rows"] == [{"key": "h1", "row": before.json()}]
        assert [(await http.get(f"{view}:count", params=of)).json()["count"] for of in (march, {})] == [1, 2]

    called(calls, make)


def test_an_etag_is_known_in_every_form_that_a_cache_sends() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await open_basket(http, "b")
        row = await http.get("/views/open_baskets/b")
        etag = row.headers["ETag"]
        for known in (etag, f"W/{etag}", f'"x", {etag}', f'W/"y",W/{etag} , "z"', "*"):
            answer = await http.get("/views/open_baskets/b", headers={"If-None-Match": known})
            assert (answer.status_code, answer.content, answer.headers["ETag"]) == (304, b"", etag), known
        for other in ('"x"', f'{etag[:-1]}0"', etag.strip('"'), ""):
            assert (await http.get("/views/open_baskets/b", headers={"If-None-Match": other})).status_code == 200, other
        twice = [("If-None-Match", '"x"'), ("If-None-Match", etag)]
        assert (await http.get("/views/open_baskets/b", headers=twice)).status_code == 304
        body = {"basket_id": "b", "product": "p", "price": "1"}
        first = await http.post("/commands/baskets/Add", json=body, headers={"If-Match": etag})
        again = await http.post("/commands/baskets/Add", json=body, headers={"If-Match": etag})
        assert (first.status_code, problem_in(again, 412)["actual"]) == (200, 2)

    called(calls)


def test_head_is_get_without_a_body_and_other_methods_name_those_allowed() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await open_basket(http, "b")
        for path in ("/views/open_baskets/b", "/views/open_baskets", "/streams/baskets/b", "/health/live"):
            get, head = await http.get(path), await http.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == get.headers["content-type"]
            assert head.headers["content-length"] == str(len(get.content))
            other = await http.put(path)
            assert "PUT is not among GET, HEAD" in problem_in(other, 405)["detail"]
            assert other.headers["Allow"] == "GET, HEAD"
        assert (await http.head("/views/open_baskets/x")).status_code == 404
        wrong = await http.get(OPEN_PATH)
        assert (problem_in(wrong, 405)["status"], wrong.headers["Allow"]) == (405, "POST")
        problem_in(await http.options(OPEN_PATH), 405)
        problem_in(await http.get("/health/live/"), 404)

    called(calls)


def test_pages_of_an_allowed_origin_may_call_with_a_key_and_see_every_refusal() -> None:
    site = "https://shop.example"

    async def calls(http: httpx.AsyncClient) -> None:
        asks = {
            "Origin": site,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key,content-type,idempotency-key,if-match,prefer",
        }
        allowed = await http.options(OPEN_PATH, headers=asks)
        assert (allowed.status_code, allowed.headers["Access-Control-Allow-Origin"]) == (200, site)
        assert set(asks["Access-Control-Request-Headers"].split(",")) <= {
            name.strip().lower() for name in allowed.headers["Access-Control-Allow-Headers"].split(",")
        }
        denied = await http.options(OPEN_PATH, headers={**asks, "Origin": "https://other.example"})
        assert denied.status_code == 400
        key = {"X-API-Key": "secret", "Origin": site}
        for answer, status in (
            (await http.post(OPEN_PATH, json={"basket_id": "b", "household": "h"}, headers={"Origin": site}), 401),
            (await http.post(OPEN_PATH, json={"basket_id": "b", "household": "h" * 2000}, headers=key), 413),
            (await http.get("/nowhere", headers=key), 404),
            (await http.post(OPEN_PATH, content=b"{", headers={**key, **JSON}), 400),
        ):
            problem_in(answer, status)
            assert answer.headers["Access-Control-Allow-Origin"] == site
        refused = await http.get("/views/open_baskets", headers={"Origin": site})
        assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        sent = await http.post(OPEN_PATH, json={"basket_id": "b", "household": "h"}, headers=key)
        shown = sent.headers["Access-Control-Expose-Headers"].split(", ")
        assert {"Leftfold-Position", "ETag", "Location", "Retry-After"} <= set(shown)

    called(calls, access=Access({hash_of("secret"): "shop"}), origins=[site], max_bytes=1000)


def test_rows_and_lines_are_compressed_for_those_who_ask() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        lines = [json.dumps({"basket_id": f"b{number}", "household": "h"}) for number in range(300)]
        for encoding in ("gzip", "identity"):
            headers = {"Accept-Encoding": encoding, "Idempotency-Key": "all", **NDJSON}
            async with http.stream("POST", f"{OPEN_PATH}:batch", content="\n".join(lines), headers=headers) as answer:
                raw = b"".join([part async for part in answer.aiter_raw()])
            assert answer.headers.get("content-encoding", "identity") == encoding
            text = gzip.decompress(raw) if encoding == "gzip" else raw
            assert [json.loads(line)["id"] for line in text.splitlines()] == [f"all/{n}" for n in range(300)]
            assert {json.loads(line)["version"] for line in text.splitlines()} == {1}, "each is decided once"
        rows = await http.get("/views/open_baskets", params={"limit": 300}, headers={"Accept-Encoding": "gzip"})
        assert (rows.headers["content-encoding"], len(rows.json()["rows"])) == ("gzip", 300)

    called(calls)


def test_an_answer_is_for_its_caller_alone() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await open_basket(http, "b")
        for path in ("/views/open_baskets/b", "/views/open_baskets/b?fields=lines", "/streams/baskets/b", "/views/x/y"):
            found = (await http.get(path)).headers.get("Cache-Control")
            assert found == (None if path == "/views/x/y" else "private, no-cache"), path

    called(calls)


def test_a_row_that_cannot_be_read_is_no_mistake_of_the_caller() -> None:
    class Unreadable:
        async def aentry(self, key: str, **options: object) -> None:
            raise ContractError("the stored row is unreadable; rebuild the view")

        async def ascan(self, **options: object) -> None:
            await self.aentry("")

    async def calls(http: httpx.AsyncClient) -> None:
        for query in ("/b", "/b?fields=lines", "", "?cursor=one:2:c"):
            answer = await http.get(f"/views/open_baskets{query}")
            assert "rebuild the view" in problem_in(answer, 500)["detail"]

    called(calls, lambda world: gateway([(app, StandIn(world, views={open_baskets: Unreadable()}))]))


def test_an_answer_says_whether_there_are_more_rows_than_its_limit() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for number in range(5):
            await check_out(http, f"b{number}", f"h{number}")
        view = "/views/household_spend"
        for query in ({"tier": "base"}, {"between": "tier"}, {"top": "tier", "order": "smallest"}, {}):
            for limit, more in ((3, True), (5, False), (6, False)):
                found = (await http.get(view, params={**query, "limit": limit})).json()
                if query:
                    assert (len(found["rows"]), found["more"], found["cursor"]) == (min(limit, 5), more, None), query
                    continue
                assert found["more"] == (found["cursor"] is not None) >= more, "a scan may end with an empty page"
                while found["cursor"]:
                    rows = found["rows"]
                    found = (await http.get(view, params={"limit": limit, "cursor": found["cursor"]})).json()
                    found["rows"] += rows
                assert (len(found["rows"]), found["more"]) == (5, False)
        generation = (await http.get(view, params={"limit": 1})).json()["cursor"].partition(":")[0]
        first = (await http.get(view, params={"tier": "base", "limit": 2})).json()["rows"]
        assert [entry["key"] for entry in first] == ["h0", "h1"]
        for two in (
            {"tier": "base", "top": "tier"},
            {"tier": "base", "between": "tier"},
            {"top": "tier", "cursor": "x"},
        ):
            assert "two ways" in problem_in(await http.get(view, params=two), 400)["detail"]
        assert (
            "two ways"
            in problem_in(await http.get(f"{view}:count", params={"tier": "a", "between": "tier"}), 400)["detail"]
        )
        beyond = f"{generation}:4000000000:"
        for cursor in ("x", "x:²:", beyond, "\n"):
            problem_in(await http.get(view, params={"cursor": cursor}), 400)
        for wrong in ({"tier": ["a", "b"]}, {"between": "no"}, {"top": "no"}):
            problem_in(await http.get(view, params=wrong), 400)
        problem_in(await http.get(view, params={"between": "tier", "at_least": "a", "above": "b"}), 400)
        assert "start the scan over" in problem_in(await http.get(view, params={"cursor": "none:0:"}), 410)["detail"]
        problem_in(await http.get(view, params={"as_of": "never"}), 404)

    called(calls)


def test_a_batch_with_a_precondition_is_refused_before_a_line_is_read() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        lines = json.dumps({"basket_id": "b", "household": "h"})
        answer = await http.post(f"{OPEN_PATH}:batch", content=lines, headers={**NDJSON, "If-Match": '"7"'})
        assert problem_in(answer, 400)["detail"].startswith("a batch has no If-Match")
        problem_in(await http.get("/streams/baskets/b"), 404)

    called(calls)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["respond-async"], True),
        (["Respond-Async; x=1"], True),
        (["handling=lenient, respond-async"], True),
        (["wait=10", 'x="a, \\"b" , RESPOND-ASYNC'], True),
        (["respond-asynchronously"], False),
        (['x="no respond-async please"', "y; respond-async"], False),
        (['x="\\", respond-async, b"'], False),
        (['x="respond-async, b'], False),
        (["", ","], False),
    ],
)
def test_a_preference_is_read_as_its_token_in_every_line_of_the_header(lines: list[str], expected: bool) -> None:
    assert _is_async(lines) is expected


def test_a_command_is_answered_before_its_decision_when_any_line_of_the_header_prefers_that() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for lines, status in (
            (["respond-async"], 202),
            (["wait=10", "respond-async"], 202),
            (['x="respond-async'], 200),
        ):
            headers = [("Prefer", line) for line in lines]
            answer = await http.post(OPEN_PATH, json={"basket_id": str(lines), "household": "h"}, headers=headers)
            assert answer.status_code == status, lines

    called(calls)


def test_respond_async_answers_before_the_decision_and_the_link_after_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        headers = {"Prefer": "respond-async", "Idempotency-Key": "later"}
        answer = await http.post(f"{BASKETS}/Add", json={**ADD, "price": "500"}, headers=headers)
        assert answer.status_code == 202
        for _ in range(2):
            assert problem_in(await http.get(answer.headers["Location"]), 422)["error"] == "TooDear"

    called(calls)


def test_a_parameter_that_a_search_or_count_would_not_use_is_refused() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        view = "/views/household_spend"
        for query in ("", "?tier=base", "?top=tier", "?cursor=x", ":count", ":count?tier=base"):
            for end in ("at_least", "above", "at_most", "below"):
                path = f"{view}{query}{'&' if '?' in query else '?'}{end}=zz"
                problem = problem_in(await http.get(path), 400)
                assert problem["detail"].startswith("at_least, above, at_most and below are ends of `between`"), path
        for other in ("top=tier", "order=smallest", "cursor=x", "limit=1", "fields=tier"):
            for query in ("", "tier=base&", "between=tier&"):
                problem = problem_in(await http.get(f"{view}:count?{query}{other}"), 400)
                assert problem["detail"].startswith(f"a count has no {other.partition('=')[0]}"), query

    called(calls)
