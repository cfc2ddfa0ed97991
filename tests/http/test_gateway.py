"""The gateway in front of an App in memory: every answer that a client may get, and what the description says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from leftfold import memory
from leftfold.errors import InfrastructureError, OutcomeUnknown
from leftfold.http import Access, gateway, router
from leftfold.http.commands import CommandRoutes, _Sent
from leftfold.http.routes import ProblemRoute
from leftfold.http.tokens import token_of
from leftfold.memory import World
from leftfold.model.messages import Command
from leftfold.model.position import Position, Receipt
from tests.domains.shop import Open, app

NDJSON = {"Content-Type": "application/x-ndjson"}
BASKETS, OPEN, ADD = "/commands/baskets", {"basket_id": "b", "household": "h"}, {"basket_id": "b", "product": "milk"}
PROBLEM = "application/problem+json"

Calls = Callable[[httpx.AsyncClient], Awaitable[None]]


def called(calls: Calls, *, access: Access | None = None, world: Any = None, **options: Any) -> None:
    """Makes calls to a gateway of the shop."""

    async def run(connected: Any) -> None:
        api = gateway([(app, connected)], access=access, **options)
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            await calls(http)

    if world is not None:
        asyncio.run(run(world))
        return
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as made:
        asyncio.run(run(made))


def is_problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem in an answer of this status."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["title"]
    return found


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


def test_a_conflict_says_which_versions_are_in_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem = is_problem(await http.post(f"{BASKETS}/Open", json=OPEN, headers={"If-Match": '"7"'}), 412)
        assert (problem["key"], problem["expected"], problem["actual"]) == ("b", 7, 0)
        for wrong in ("seven", '"-1"', "*", '"²"'):
            is_problem(await http.post(f"{BASKETS}/Open", json=OPEN, headers={b"If-Match": wrong.encode()}), 400)

    called(calls)


def test_a_domain_error_has_its_name_and_fields() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem = is_problem(await http.post(f"{BASKETS}/Add", json={**ADD, "price": "101"}), 422)
        assert problem["type"] == "urn:leftfold:error:TooDear"
        assert (problem["error"], problem["fields"]) == ("TooDear", {"price": "101", "most": "100"})
        assert problem["detail"] == "101 is more than 100"

    called(calls)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "JSON decode error"),
        (b"{}", "basket_id"),
        (b"[]", "body"),
        (b'{"basket_id":"b","household":"h","x":1}', "x"),
    ],
)
def test_a_malformed_command_is_named(body: bytes, named: str) -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        answer = await http.post(f"{BASKETS}/Open", content=body, headers={"Content-Type": "application/json"})
        assert named in is_problem(answer, 400)["detail"]

    called(calls)


def test_unknown_paths_and_methods_are_problems() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        is_problem(await http.get("/nowhere"), 404)
        is_problem(await http.put("/health/live"), 405)
        is_problem(await http.get("/views/open_baskets/nobody"), 404)
        is_problem(await http.get("/views/open_baskets/b", params={"after": "no token"}), 400)
        is_problem(await http.get("/streams/baskets/nobody"), 404)

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

    called(calls)


def test_rows_are_found_by_key_by_index_in_order_and_page_by_page() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for number in range(5):
            basket = f"b{number}"
            for name, fields in (
                ("Open", {"household": f"h{number}"}),
                ("Add", {"product": "p", "price": f"{9 * number + 1}"}),
                ("CheckOut", {}),
            ):
                sent = await http.post(f"{BASKETS}/{name}", json={"basket_id": basket, **fields})
                assert sent.status_code == 200, sent.text
        view = "/views/household_spend"
        page = (await http.get(view, params={"limit": 3})).json()
        rest = (await http.get(view, params={"limit": 3, "cursor": page["cursor"]})).json()
        assert sorted(one["key"] for one in [*page["rows"], *rest["rows"]]) == [f"h{n}" for n in range(5)]
        tiers = {one["row"]["tier"] for one in [*page["rows"], *rest["rows"]]}
        for tier in tiers:
            found = (await http.get(view, params={"tier": tier})).json()["rows"]
            count = (await http.get(f"{view}:count", params={"tier": tier})).json()["count"]
            assert {one["row"]["tier"] for one in found} == {tier}
            assert count == len(found)
        assert (await http.get(f"{view}:count")).json() == {"count": 5}
        ranged = {"between": "tier", "at_least": max(tiers)}
        assert (await http.get(f"{view}:count", params=ranged)).json()["count"] < 5
        top = (await http.get(view, params={"top": "tier", "limit": 1, "order": "smallest"})).json()["rows"]
        assert top[0]["row"]["tier"] == min(tiers)
        between = (await http.get(view, params={"between": "tier", "at_least": min(tiers), "fields": "total"})).json()
        assert len(between["rows"]) == 5
        assert all(list(one["row"]) == ["total"] for one in between["rows"])
        is_problem(await http.get(view, params={"nothing": "1"}), 400)
        is_problem(await http.get(f"{view}/h1", params={"fields": "nothing"}), 400)

    called(calls)


def test_a_row_that_is_known_is_not_sent_again() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await http.post(f"{BASKETS}/Add", json={**ADD, "price": "1"})
        first = await http.get("/views/open_baskets/b")
        again = await http.get("/views/open_baskets/b", headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        await http.post(f"{BASKETS}/Add", json={**ADD, "price": "1"})
        changed = await http.get("/views/open_baskets/b", headers={"If-None-Match": first.headers["ETag"]})
        assert changed.status_code == 200

    called(calls)


def test_a_stale_view_is_told_with_both_positions() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        late = token_of(Position.at("baskets.events", 0, 99))
        answer = await http.get("/views/open_baskets/b", params={"after": late, "timeout": 0})
        assert "99" in is_problem(answer, 504)["detail"]

    called(calls)


def test_a_stream_has_events_with_metadata_and_the_state_at_each_version() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
        await http.post(f"{BASKETS}/Add", json={**ADD, "price": "3"})
        whole = (await http.get("/streams/baskets/b")).json()
        before = (await http.get("/streams/baskets/b", params={"version": 1, "limit": 0})).json()
        assert [one["type"] for one in whole["events"]] == ["baskets.Opened.v1", "baskets.Added.v1"]
        assert whole["events"][0]["causation_id"] == "one"
        assert (whole["version"], whole["state"]["lines"]) == (2, [["milk", "3"]])
        assert (before["version"], before["state"]["lines"], before["events"]) == (1, [], [])

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


class _Connected:
    def __init__(self, world: World, client: Any) -> None:
        self._world, self.client, self.views = world, client, world.views

    def stream(self, category: str, key: str) -> Any:
        return self._world.stream(category, key)


@contextmanager
def silent_world(silent: int) -> Iterator[_Connected]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        yield _Connected(world, _Silent(world, silent))


def test_what_became_of_a_command_without_an_answer_is_told_at_its_link() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        answer = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
        assert (answer.status_code, answer.headers["Location"]) == (202, f"{BASKETS}/Open/one")
        still = await http.get(answer.headers["Location"])
        assert still.status_code == 202
        known = await http.get(answer.headers["Location"])
        assert (known.status_code, known.json()["version"]) == (200, 1)
        is_problem(await http.get(answer.headers["Location"]), 404)

    with silent_world(2) as world:
        called(calls, world=world)
        assert world.client.sent == ["one"] * 3


def test_a_link_leads_to_the_command_also_below_a_prefix() -> None:
    async def run(world: Any) -> None:
        api = FastAPI()
        api.include_router(router(app, world), prefix="/shop")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as http:
            answer = await http.post(f"/shop{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "a b"})
            assert (answer.status_code, answer.headers["Location"]) == (202, f"/shop{BASKETS}/Open/a%20b")
            still = await http.get(answer.headers["Location"])
            assert (still.status_code, still.headers["Location"]) == (202, answer.headers["Location"])
            assert (await http.get(answer.headers["Location"])).json()["version"] == 1

    with silent_world(2) as world:
        asyncio.run(run(world))


def test_a_link_sends_no_command_again_whose_first_answer_may_be_forgotten() -> None:
    times = [0.0]

    async def run(world: Any) -> None:
        routes, api = CommandRoutes(lambda: world.client, Access(), clock=lambda: times[-1]), FastAPI()
        found = APIRouter(route_class=ProblemRoute)
        routes.add(found, Open, "open")
        api.include_router(found)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as http:
            link = (await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})).json()["status"]
            for now, status in ((59.0, 202), (60.0, 202), (61.0, 404), (1e6, 404)):
                times.append(now)
                assert (await http.get(link)).status_code == status
        assert world.client.sent == ["one"] * 3

    with silent_world(10) as world:
        asyncio.run(run(world))


def test_commands_whose_outcome_is_not_known_are_remembered_up_to_a_size() -> None:
    routes = CommandRoutes(lambda: pytest.fail("it is not asked for"), Access())
    command = Open(basket_id="b", household="h")
    for number in range(100):
        routes._remember(("path", str(number)), _Sent(command, None, "", 1_048_576, 0.0))
        routes._remember(("path", str(number)), _Sent(command, None, "", 1_048_576, 0.0))
    assert [id_ for _, id_ in routes._unknown] == [str(number) for number in range(36, 100)]
    for number in range(100):
        routes._forget(("path", str(number)))
    assert routes._bytes == 0


def test_respond_async_answers_before_the_decision_and_the_link_after_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        headers = {"Prefer": "respond-async", "Idempotency-Key": "later"}
        answer = await http.post(f"{BASKETS}/Add", json={**ADD, "price": "500"}, headers=headers)
        assert answer.status_code == 202
        assert is_problem(await http.get(answer.headers["Location"]), 422)["error"] == "TooDear"

    called(calls)


def test_a_link_of_one_command_tells_nothing_of_another() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        headers = {"Prefer": "respond-async", "Idempotency-Key": "a/b c"}
        answer = await http.post(f"{BASKETS}/Open", json=OPEN, headers=headers)
        assert answer.headers["Location"] == f"{BASKETS}/Open/a/b%20c"
        is_problem(await http.get(f"{BASKETS}/Add/a/b%20c"), 404)
        assert (await http.get(answer.headers["Location"])).json()["id"] == "a/b c"

    called(calls)


def test_a_line_without_an_end_is_not_read_to_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        read = 0

        async def body() -> Any:
            nonlocal read
            yield json.dumps(OPEN).encode() + b"\n"
            for _ in range(100):
                read += 100_000
                yield b"x" * 100_000

        answer = await http.post(f"{BASKETS}/Open:batch", content=body(), headers=NDJSON)
        first, last = (json.loads(line) for line in answer.text.splitlines())
        assert (first["version"], last["status"]) == (1, 413)
        assert read < 2_000_000

    called(calls)


def test_large_bodies_are_refused() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        is_problem(await http.post(f"{BASKETS}/Open", json={"basket_id": "b", "household": "h" * 2000}), 413)

    called(calls, max_bytes=1000)


class _Down:
    """A connection whose servers are down."""

    @property
    def client(self) -> Any:
        raise InfrastructureError("no broker answers")

    @property
    def views(self) -> Any:
        raise InfrastructureError("no Redis answers")

    def stream(self, category: str, key: str) -> Any:
        raise InfrastructureError("no broker answers")


def test_a_gateway_begins_without_servers_and_says_that_it_is_not_ready() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        assert (await http.get("/health/live")).status_code == 200
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        for answer in (
            await http.post(f"{BASKETS}/Open", json=OPEN),
            await http.get("/views/open_baskets/b"),
            await http.get("/streams/baskets/b"),
        ):
            is_problem(answer, 503)
            assert answer.headers["Retry-After"] == "1"

    called(calls, world=_Down())


def test_the_description_names_every_route_and_answer() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        document = (await http.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        assert "HTTPValidationError" not in json.dumps(document)
        send = document["paths"][f"{BASKETS}/Add"]["post"]
        statuses = "200 202 400 401 403 408 409 412 413 415 422 431 500 503"
        assert set(send["responses"]) == set(statuses.split())
        assert (send["operationId"], send["responses"]["400"]["content"].keys()) == ("send_add", {PROBLEM})
        assert send["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Add"}
        for reference in set(json.dumps(document).split('"$ref": "')[1:]):
            name = reference.partition('"')[0].removeprefix("#/components/schemas/")
            assert name in document["components"]["schemas"], name

    called(calls)
