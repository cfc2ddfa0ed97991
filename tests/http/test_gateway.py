"""The gateway in front of an App in memory: every answer that a client may get, and what the description says of it."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module

import httpx
import pytest
from starlette.types import Message

from leftfold import App, DomainError, FoldView, World, memory
from leftfold.errors import InfrastructureError
from leftfold.http import Access, Permission, Principal, gateway
from leftfold.http.batches import _line
from leftfold.http.routes import POSITION_HEADER, position_in, token_of
from leftfold.model.position import Position
from tests.domains.shop import BasketEvent, Open, Opened, Summary, app, baskets, baskets_with
from tests.http.calls import ADD, BASKETS, JSON, NOW, OPEN, OPEN_PATH, PROBLEM, Broken, StandIn, called, problem_in
from tests.http.serving import serving
from tests.waiting import WAIT_SECONDS

DOWN = Broken(InfrastructureError("no broker answers"))


def test_a_conflict_says_which_versions_are_in_it() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem = problem_in(await http.post(f"{BASKETS}/Open", json=OPEN, headers={"If-Match": '"7"'}), 412)
        assert (problem["key"], problem["expected"], problem["actual"]) == ("b", 7, 0)
        for wrong in ("seven", '"-1"', "*", '"²"'):
            problem_in(await http.post(f"{BASKETS}/Open", json=OPEN, headers={b"If-Match": wrong.encode()}), 400)

    called(calls)


def test_a_domain_error_has_its_name_and_fields() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem = problem_in(await http.post(f"{BASKETS}/Add", json={**ADD, "price": "101"}), 422)
        assert problem["type"] == "urn:leftfold:error:TooDear"
        assert (problem["error"], problem["fields"]) == ("TooDear", {"price": "101", "most": "100"})
        assert problem["detail"] == "101 is more than 100"

    called(calls)


class Far(DomainError):
    distance: float


def test_a_line_of_a_batch_is_json_for_a_number_that_json_does_not_have() -> None:
    line = _line("one", Far(distance=math.inf))
    assert json.loads(line, parse_constant=lambda name: f"a {name}")["fields"] == {"distance": None}


def test_a_malformed_command_is_named() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for body, named in (
            (b"{", "JSON decode error"),
            (b"{}", "basket_id"),
            (b"[]", "body"),
            (b'{"basket_id":"b","household":"h","x":1}', "x"),
        ):
            answer = await http.post(f"{BASKETS}/Open", content=body, headers=JSON)
            assert named in problem_in(answer, 400)["detail"], body

    called(calls)


def test_unknown_paths_and_methods_are_problems() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem_in(await http.get("/nowhere"), 404)
        problem_in(await http.put("/health/live"), 405)
        problem_in(await http.get("/views/open_baskets/unknown"), 404)
        problem_in(await http.get("/views/open_baskets/b", params={"after": "no token"}), 400)
        problem_in(await http.get("/streams/baskets/unknown"), 404)

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
        problem_in(await http.get(view, params={"nothing": "1"}), 400)
        problem_in(await http.get(f"{view}/h1", params={"fields": "nothing"}), 400)

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


def test_a_stale_view_is_reported_with_both_positions() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await http.post(f"{BASKETS}/Open", json=OPEN)
        position = position_in((await http.get("/views/open_baskets/b")).headers[POSITION_HEADER])
        assert position.next_offset("baskets.events", 0) > 0
        late = token_of(Position.at("baskets.events", 0, 99))
        answer = await http.get("/views/open_baskets/b", params={"after": late, "timeout": 0})
        problem = problem_in(answer, 504)
        assert "99" in problem["detail"]
        assert problem["asked"] == {"baskets.events": {"0": 99}}
        assert problem["reached"] == json.loads(position.to_json())
        document = (await http.get("/openapi.json")).json()
        for path in ("/views/open_baskets/{key}", "/views/open_baskets", "/views/open_baskets:count"):
            (described,) = document["paths"][path]["get"]["responses"]["504"]["content"].values()
            assert described["schema"] == {"$ref": "#/components/schemas/StaleViewProblem"}
        assert {"detail", "asked", "reached"} <= document["components"]["schemas"]["StaleViewProblem"][
            "properties"
        ].keys()

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


@dataclass(frozen=True)
class Begun:
    pass


@dataclass(frozen=True)
class Filled:
    pass


@dataclass(frozen=True)
class Stage:
    now: Begun | Filled


def test_rows_and_states_name_the_class_in_a_union() -> None:
    def step(state: Stage | None, event: BasketEvent) -> Stage:
        return Stage(Begun() if isinstance(event, Opened) else Filled())

    async def calls(http: httpx.AsyncClient) -> None:
        await http.post(f"{BASKETS}/Open", json=OPEN)
        await http.post(f"{BASKETS}/Add", json={**ADD, "price": "3"})
        filled = {"now": {"@": "Filled"}}
        states = [(await http.get("/streams/baskets/b", params={"version": n})).json()["state"] for n in (1, 2)]
        assert states == [{"now": {"@": "Begun"}}, filled]
        for query in ({}, {"fields": "now"}):
            assert (await http.get("/views/stages/b", params=query)).json() == filled
        assert (await http.get("/views/stages")).json()["rows"] == [{"key": "b", "row": filled}]

    decider = baskets_with(
        state=Stage, initial_state=Stage(Begun()), evolve=step,
        decide=lambda command, state: baskets.decide(command, baskets.initial_state),
    )  # fmt: skip
    view = FoldView("stages", events=BasketEvent, row=Stage, evolve=step)
    called(calls, app=App("shop", partitions=4, deciders=[decider], views=[view]))


def test_large_bodies_are_refused() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        problem_in(await http.post(f"{BASKETS}/Open", json={"basket_id": "b", "household": "h" * 2000}), 413)

    called(calls, max_bytes=1000)


def test_a_batch_whose_client_disconnects_ends_without_an_error_that_the_server_logs() -> None:
    parts = [{"type": "http.request", "body": json.dumps(OPEN).encode() + b"\n", "more_body": True}]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
             "path": f"{OPEN_PATH}:batch", "raw_path": f"{OPEN_PATH}:batch".encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/x-ndjson")]}  # fmt: skip

    async def receive() -> Message:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        return None

    async def run(world: World) -> None:
        await gateway([(app, world)])(scope, receive, send)

    with memory(app, now=NOW) as world:
        asyncio.run(run(world))
    assert not parts


def moment(event: Opened) -> datetime:
    return datetime.fromisoformat(event.household)


def place(event: Opened) -> tuple[datetime, str]:
    return moment(event), event.basket_id


moments = FoldView("moments", events=Opened, row=Summary, key=moment, evolve=lambda _, __: Summary())
places = FoldView("places", events=Opened, row=Summary, key=place, evolve=lambda _, __: Summary())


@pytest.mark.parametrize(
    ("view", "named", "wanted", "refused"),
    [
        ("moments", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00", "2026"),
        ("places", "2026-01-01T00:00:00Z/b%2F1", "2026-01-01T00%3A00%3A00%2B00%3A00/b%2F1", "2026-01-01T00:00:00Z"),
    ],
)
def test_a_listener_names_keys_as_a_read_does(view: str, named: str, wanted: str, refused: str) -> None:
    asked = list[str | None]()

    def authorize(_: Principal, permission: Permission) -> bool:
        asked.append(permission.key)
        return True

    shop = App("shop", deciders=[baskets], views=[moments, places])
    with (
        memory(shop, now=NOW) as world,
        serving(gateway([(shop, world)], access=Access(authorize=authorize))) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=WAIT_SECONDS) as http,
    ):
        for path in (f"/views/{view}/{refused}", f"/changes/{view}?key={refused}"):
            with http.stream("GET", path) as answer:
                assert answer.status_code == 400
        with http.stream("GET", f"/changes/{view}", params={"key": named}) as answer:
            assert asked[-1] == wanted
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            world.client.send(Open(household="2026-01-01T00:00:00Z", basket_id="b/1"))
            assert json.loads(next(line for line in lines if line.startswith("data:"))[6:])["key"] == wanted
        assert http.get(f"/views/{view}/{named}").status_code == 200
        assert asked[-1] == wanted


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
            problem_in(answer, 503)
            assert answer.headers["Retry-After"] == "1"

    called(calls, lambda _: gateway([(app, DOWN)]))


def test_a_gateway_whose_brokers_went_away_says_that_it_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("leftfold.http.gateway"), "_READY_SECONDS", 240.0)

    async def calls(http: httpx.AsyncClient) -> None:
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["why"]) == (503, ["shop: no broker answers"])

    called(calls, lambda world: gateway([(app, StandIn(world, log_reader=DOWN.log_reader))]))


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
