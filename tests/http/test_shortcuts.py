"""The short way of plain requests answers as the long way does, which an unusual header takes."""

from __future__ import annotations

import asyncio
import json
from datetime import date, datetime
from typing import Annotated, Any
from uuid import UUID

import httpx
from fastapi import FastAPI
from pydantic import Strict
from starlette.types import Receive, Scope, Send

from leftfold import App, Command, Decider, Event, World, memory
from leftfold.http import Access, Permission, Principal, gateway, hash_of, router
from tests.domains.shop import app
from tests.http.calls import ADD, BASKETS, JSON, NOW, OPEN, called, client_of

VIEW = "/views/open_baskets"
LONG = {"X-Unusual": "1"}
PROXY = {"Forwarded": "for=192.0.2.1", "Via": "1.1 proxy", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Host": "shop",
         "X-Forwarded-Port": "443", "X-Forwarded-Proto": "https", "X-Real-IP": "192.0.2.1", "X-Request-ID": "1",
         "X-Amzn-Trace-Id": "Root=1"}  # fmt: skip
CHROME = {"Cookie": "a=b", "DNT": "1", "Priority": "u=1, i", "Sec-Fetch-Dest": "empty", "Sec-Fetch-Mode": "cors",
          "Sec-Fetch-Site": "same-origin", "Sec-CH-UA": '"Chromium";v="150"', "Sec-CH-UA-Mobile": "?0",
          "Sec-CH-UA-Platform": '"Linux"', "Origin": "https://shop", "Referer": "https://shop/"}  # fmt: skip
READS = [f"{VIEW}/b", f"{VIEW}/nothing", f"{VIEW}/%C3%A4%2F", f"{VIEW}/b?after=nonsense", f"{VIEW}/b?fields=total",
         f"{VIEW}/", "/views/nothing/b", f"/elsewhere{VIEW}/b", f"{VIEW}/b/c", f"/{VIEW}/b",
         f"{VIEW}/b?after=a&after=b"]  # fmt: skip
BODIES = [
    (OPEN, {}),
    ({**OPEN, "household": "another"}, {}),
    ({**OPEN, "household": 7}, {}),
    ({}, {}),
    (OPEN, {"Content-Type": "text/plain"}),
    (OPEN, {"Content-Type": "application/json; charset=utf-8"}),
    (OPEN, {"If-Match": '"7"'}),
    (OPEN, {"Idempotency-Key": ""}),
    (OPEN, {"Idempotency-Key": "k" * 201}),
    ({**OPEN, "basket_id": ""}, {"Idempotency-Key": "one"}),
]


class Planned(Event, category="plans", key="plan"):
    plan: str


class Plan(Command, category="plans", key="plan"):
    """A command whose fields are read from JSON as from no values of Python."""

    plan: str
    ref: UUID | str | None = None
    day: date | str | None = None
    at: Annotated[datetime, Strict()] | None = None
    pair: Annotated[tuple[int, int], Strict()] | None = None


def plan(command: Plan, state: int) -> list[Planned]:
    return [Planned(plan=command.plan)]


def count(state: int, event: Planned) -> int:
    return state + 1


plans = App(
    "plans",
    deciders=[Decider("plans", commands=Plan, events=Planned, state=int, initial_state=0, decide=plan, evolve=count)],
)
PLANNED: list[dict[str, Any]] = [
    {"ref": "0b1e0b1e-0b1e-4b1e-8b1e-0b1e0b1e0b1e"},
    {"day": "2026-01-01"},
    {"at": "2026-01-01T00:00:00Z"},
    {"pair": [1, 2]},
    {"pair": [1]},
    {"at": 7},
]


def seen(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    """What a caller sees of an answer, without the id that was made for it."""
    body = answer.json() if answer.content else None
    if isinstance(body, dict):
        body.pop("id", None)
    named = ("content-type", "etag", "leftfold-position", "www-authenticate", "retry-after")
    return answer.status_code, body, {name: answer.headers.get(name, "") for name in named}


def test_reads_are_answered_alike_on_both_ways() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        await http.post(f"{BASKETS}/Open", json=OPEN)
        position = (await http.post(f"{BASKETS}/Add", json={**ADD, "price": "2.50"})).json()["position"]
        for path in [*READS, f"{VIEW}/b?after={position}"]:
            short, long = await http.get(path), await http.get(path, headers=LONG)
            assert seen(short) == seen(long), path

    called(calls)


def test_commands_are_answered_alike_on_both_ways() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for body, headers in BODIES:
            content, named = json.dumps(body), {**JSON, **headers}
            short, long = [
                await http.post(f"{BASKETS}/Open", content=content, headers={**named, **way}) for way in ({}, LONG)
            ]
            if short.status_code == 200:  # the second changes nothing
                assert (long.status_code, long.json()["version"]) == (200, short.json()["version"]), content
            else:
                assert seen(short) == seen(long), (content, headers)

    called(calls)


def test_a_command_is_read_from_json_as_the_worker_reads_it_on_every_way() -> None:
    async def calls(world: World) -> None:
        own = FastAPI()
        own.include_router(router(plans, world))
        async with client_of(gateway([(plans, world)])) as http, client_of(own) as routed:
            for fields in PLANNED:
                body = {"plan": "p", **fields}
                short = await http.post("/commands/plans/Plan", json=body)
                assert short.status_code == (200 if fields in PLANNED[:4] else 400), short.text
                for long in (
                    await http.post("/commands/plans/Plan", json=body, headers={"X-Unusual": "1"}),
                    await routed.post("/commands/plans/Plan", json=body),
                ):
                    assert (long.status_code, long.json().get("errors")) == (
                        short.status_code,
                        short.json().get("errors"),
                    ), body

    with memory(plans, now=NOW) as world:
        asyncio.run(calls(world))


def test_both_ways_ask_for_credentials_and_the_right() -> None:
    def authorize(principal: Principal, permission: Permission) -> bool:
        return permission.key == "b"

    async def calls(http: httpx.AsyncClient) -> None:
        for way in ({}, LONG):
            for key, found in (("", 401), ("secret", 404)):
                assert (await http.get(f"{VIEW}/b", headers={"X-API-Key": key, **way})).status_code == found
            assert (await http.get(f"{VIEW}/c", headers={"X-API-Key": "secret", **way})).status_code == 403
            assert (await http.post(f"{BASKETS}/Open", json=OPEN, headers=way)).status_code == 401
            refused = await http.post(f"{BASKETS}/Open", json=OPEN, headers={"X-API-Key": "secret", **way})
            assert refused.status_code == 403

    called(calls, access=Access({hash_of("secret"): "shop"}, authorize))


def test_plain_requests_take_the_short_way_and_others_the_long_one() -> None:
    """Without it every other test here would pass as well."""
    routes: list[str] = []

    async def calls(world: World) -> None:
        api = gateway([(app, world)])

        async def seen(scope: Scope, receive: Receive, send: Send) -> None:
            await api(scope, receive, send)
            routes.append(type(scope.get("route")).__name__)

        async with client_of(seen) as http:
            await http.post(f"{BASKETS}/Open", json=OPEN, headers={"Idempotency-Key": "one"})
            position = (await http.get(f"{VIEW}/b")).headers["Leftfold-Position"]
            await http.get(f"{VIEW}/b", params={"after": position})
            for headers in (PROXY, CHROME):
                await http.get(f"{VIEW}/b", headers=headers)
                await http.post(f"{BASKETS}/Open", json=OPEN, headers=headers)
            await http.post(f"{BASKETS}/Open", json=OPEN, headers={"If-Match": '"1"'})
            await http.get(f"{VIEW}/b", params={"fields": "total"})
            await http.get(f"{VIEW}/b", headers=LONG)

    with memory(app, now=NOW) as world:
        asyncio.run(calls(world))
    assert routes == ["_Route"] * 7 + ["ProblemRoute"] * 3
