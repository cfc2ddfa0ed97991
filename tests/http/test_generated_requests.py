"""Requests that Schemathesis makes from the description of the gateway: no answer is a failure, and each is described.

A `decide` that raises is answered with 500 by design. The rules of the baskets raise domain errors only, so that any
500 is a defect of the gateway here, and `not_a_server_error` stays in force. Two checks have exceptions: a batch
answers line by line, so that a wrong line is no reason to refuse it; the keys that a listener wants are any text, so
that none is wrong; and a request that fits the schema may still be
refused, because a rule or a token says so (`positive_data_acceptance`).
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import schemathesis
from schemathesis.engine import events, from_schema
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leftfold import memory
from leftfold.http import gateway
from services.baskets.app import app

CONFIG: dict[str, Any] = {
    "seed": 1,
    "generation": {"deterministic": True, "database": "none"},
    "continue-on-failure": True,
    "checks": {"positive_data_acceptance": {"enabled": False}},
    "operations": [
        {"include-path-regex": regex, "checks": {"negative_data_rejection": {"enabled": False}}}
        for regex in (":batch$", "^/(changes|events)/")
    ],
}


@schemathesis.serializer("application/x-ndjson")
def as_lines(context: Any, value: Any) -> bytes:
    """A body of lines: generated text as it is, and anything else as one line of JSON."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


class _EndedStreams:
    """The gateway, with server-sent events that end behind their first part, since the client reads to the end."""

    def __init__(self, api: ASGIApp) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = False

        async def shortened(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                is_stream = dict(message["headers"])[b"content-type"].startswith(b"text/event-stream")
            if message["type"] == "http.response.body" and is_stream:
                await send({**message, "more_body": False})
                raise OSError("the client has disconnected")
            await send(message)

        with suppress(ClientDisconnect, OSError):
            await self._api(scope, receive, shortened)


def described(examples: int, *phases: str) -> tuple[int, list[str]]:
    """How many requests were made, and what is wrong with the answers."""
    generation = {**CONFIG["generation"], "max-examples": examples}
    enabled = {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")}
    config = schemathesis.Config.from_dict({**CONFIG, "generation": generation, "phases": enabled})
    statuses, wrong = Counter[int](), list[str]()
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        schema = schemathesis.openapi.from_asgi("/openapi.json", _EndedStreams(gateway([(app, world)])), config=config)
        for event in from_schema(schema).execute():
            if isinstance(event, (events.NonFatalError, events.FatalError)):
                wrong.append(
                    f"{type(event).__name__}: {getattr(event, 'info', None) or getattr(event, 'exception', '')}"
                )
            elif isinstance(event, events.ScenarioFinished):
                answers = [one.response for one in event.recorder.interactions.values()]
                statuses.update(answer.status_code for answer in answers if answer is not None)
                wrong += [
                    f"{event.label}: {check.name}: {check.failure_info.failure.title} {check.failure_info.code_sample}"
                    for checks in event.recorder.checks.values()
                    for check in checks
                    if check.failure_info is not None
                ]
    assert {200, 400, 404, 422} <= statuses.keys(), f"the requests reach little: {statuses}"
    return statuses.total(), wrong


def test_about_a_hundred_generated_requests_are_answered_as_described() -> None:
    count, wrong = described(3, "fuzzing")
    assert not wrong
    assert 100 <= count <= 300


@pytest.mark.faults
def test_thousands_of_generated_requests_are_answered_as_described() -> None:
    count, wrong = described(150, "coverage", "fuzzing")
    assert not wrong
    assert count >= 5000
