"""The HTTP gateway of an App: commands, views and health as a FastAPI router or application."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.telemetry import TelemetryConfig
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from leftfold.client.commands import Client
from leftfold.client.reader import Views
from leftfold.errors import LeftfoldError, ViewNotBuilt
from leftfold.http.access import Access, KnownHosts
from leftfold.http.command_routes import CommandRoutes
from leftfold.http.gateway_server import BODY_SECONDS, MAX_BODY_BYTES, RequestLimits
from leftfold.http.problems import PROBLEM_JSON, Problem, problem_response
from leftfold.http.routes import FirstConnection, ProblemRoute, operation_name
from leftfold.http.server_sent_events import add_changes, add_events
from leftfold.http.shortcuts import Shortcut, Shortcuts
from leftfold.http.stream_routes import add_stream
from leftfold.http.view_routes import ViewRoutes
from leftfold.model import keys as topic_names
from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.model.position import Recorded
from leftfold.ports.protocols import LogReader
from leftfold.version import __version__

__all__ = ["AppConnection", "gateway", "router"]

_GZIP_FROM = 1000
_READY_SECONDS = 5.0
_TELEMETRY: TelemetryConfig = {"operation_spans": False, "logs": False}
"""One span and one duration per request, where the process has an SDK; errors are answered, and need no log."""
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
Closing: TypeAlias = Callable[[], Awaitable[None]]


class AppConnection(Protocol):
    """A connection to an App: `connect(app)`, or the world of `memory(app)`."""

    @property
    def client(self) -> Client:
        """The client that sends commands."""

    @property
    def views(self) -> Views:
        """The readers of views."""

    def stream(self, category: str, key: str) -> Iterable[Recorded[Any]]:
        """The events of one stream, in order."""

    def log_reader(self) -> LogReader:
        """A reader of committed events for one thread; the caller closes it."""


def router(app: App, connection: AppConnection, *, access: Access | None = None) -> APIRouter:
    """The routes of an App's commands and views, for a FastAPI application of one's own.

    Their errors are problem details there, too; the limits of bodies and the health routes are those of `gateway`.

    Args:
        access: who may call; by default everybody.
    """
    found = _routes(app, connection, access or Access(), _operations([app]))
    found.router.on_shutdown += found.feeds
    return found.router


class _Routes(NamedTuple):
    """The routes of an App: its router, what ends its feeds, the shortcuts of commands and of rows, and its clients."""

    router: APIRouter
    feeds: list[Closing]
    commands: Mapping[str, Shortcut]
    rows: Mapping[str, Shortcut]
    client: FirstConnection[Client]
    views: FirstConnection[Views]
    probe: _LogProbe


class _LogProbe:
    """Whether the log of an App answers, asked on a thread and at most every few seconds."""

    def __init__(self, app: App, open_reader: Callable[[], LogReader]) -> None:
        self._topics, self._open = [topic_names.events(decider.name) for decider in app.deciders[:1]], open_reader
        self._asked: asyncio.Task[None] | None = None
        self._reader: LogReader | None = None
        self._at = float("-inf")

    async def check(self) -> None:
        """Waits for an answer of the last seconds. Raises LeftfoldError: there is none."""
        if self._asked is None or (self._asked.done() and time.monotonic() - self._at > _READY_SECONDS):
            self._asked = asyncio.ensure_future(asyncio.to_thread(self._ask))
        await asyncio.shield(self._asked)

    def _ask(self) -> None:
        if self._reader is None:
            self._reader = self._open()
        for topic in self._topics:
            self._reader.partitions(topic)
        self._at = time.monotonic()

    async def close(self) -> None:
        """Closes the reader, behind the last answer."""
        if self._asked is not None:
            await asyncio.gather(self._asked, return_exceptions=True)
        if self._reader is not None:
            await asyncio.to_thread(self._reader.close)


def _routes(app: App, connection: AppConnection, rules: Access, operations: Mapping[type[Command], str]) -> _Routes:
    async def authenticate(request: Request) -> None:
        await rules.principal(request)

    schemes = [Security(scheme) for scheme in rules.schemes]
    found = APIRouter(route_class=ProblemRoute, dependencies=[Depends(authenticate), *schemes])
    client, views = FirstConnection(lambda: connection.client), FirstConnection(lambda: connection.views)
    commands, rows, feeds = CommandRoutes(client, rules), ViewRoutes(views, rules), list[Closing]()
    for decider in app.deciders:
        for command in decider.commands:
            commands.add(found, command, operations[command])
        add_stream(found, decider, connection.stream, rules)
        feed = add_events(found, decider, lambda: connection.log_reader(), rules)  # noqa: PLW0108  # once asked for
        feeds.append(feed.close)
    found.on_shutdown.append(commands.close)
    for view in app.views:
        rows.add(found, view)
        feeds.append(add_changes(found, view, views, rules).close)
    probe = _LogProbe(app, lambda: connection.log_reader())  # noqa: PLW0108  # once asked for
    return _Routes(found, feeds, commands.shortcuts, rows.shortcuts, client, views, probe)


def _operations(apps: Iterable[App]) -> Mapping[type[Command], str]:
    """The names of commands in the ids of operations; those of one name in several categories have these in front."""
    commands = [command for app in apps for decider in app.deciders for command in decider.commands]
    counts = Counter(operation_name(command.__leftfold__.name) for command in commands)
    found = {}
    for command in commands:
        name = operation_name(command.__leftfold__.name)
        found[command] = name if counts[name] == 1 else f"{operation_name(command.__leftfold__.category)}_{name}"
    return found


def gateway(
    apps: Sequence[tuple[App, AppConnection]],
    *,
    access: Access | None = None,
    origins: Sequence[str] = (),
    max_bytes: int = MAX_BODY_BYTES,
    body_seconds: float = BODY_SECONDS,
    metrics: Callable[[], bytes] | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """An application with the routes of Apps, and with /health/live and /health/ready.

    Args:
        access: who may call; by default everybody. origins: of browsers whose pages may call (CORS).
        max_bytes: the largest body of a request; a batch may be larger in all. body_seconds: how long a body may take
            to arrive, and of a batch, each line.
        metrics: returns the metrics of this process, for `/metrics`; None = there is no such route.
        hosts: the names under which it answers, see `KnownHosts`; () = any.
    """
    names = ", ".join(app.name for app, _ in apps)
    operations = _operations([app for app, _ in apps])
    made = [_routes(app, connection, access or Access(), operations) for app, connection in apps]
    feeds = [close for one in made for close in one.feeds]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            probes = [one.probe.close for one in made]
            for close in (*feeds, *probes, *(close for one in made for close in one.router.on_shutdown)):
                stack.push_async_callback(close)
            yield

    found = FastAPI(
        title=f"Leftfold: {names}", version=__version__, lifespan=lifespan, redirect_slashes=False, telemetry=_TELEMETRY
    )
    found.state.feeds = feeds  # which `GatewayServer` ends before it waits for its connections
    for one in made:
        found.include_router(one.router)
    health = _health([(app, one) for (app, _), one in zip(apps, made, strict=True)])
    if metrics is not None:
        _add_metrics(health, access or Access(), metrics)
    found.include_router(health)
    _add_handlers(found)
    _describe(found)
    commands = {path: answer for one in made for path, answer in one.commands.items()}
    rows = {path: answer for one in made for path, answer in one.rows.items()}
    found.add_middleware(Shortcuts, commands=commands, rows=rows)
    # From the inside out: answers of limits are for pages of other origins, too.
    found.add_middleware(RequestLimits, max_bytes=max_bytes, body_seconds=body_seconds, access=access or Access())
    found.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM)
    if origins:
        exposed = ["Leftfold-Position", "ETag", "Location", "Retry-After"]
        found.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=exposed,
        )
    if hosts:
        found.add_middleware(KnownHosts, hosts=hosts)
    return found


class Health(BaseModel):
    """The state of a gateway; `why` says what does not answer."""

    status: str
    why: list[str] = []


def _health(apps: Sequence[tuple[App, _Routes]]) -> APIRouter:
    found = APIRouter(route_class=ProblemRoute, tags=["health"])
    looking: asyncio.Future[list[list[str]]] | None = None

    @found.get("/health/live", summary="Whether this process works", operation_id="get_liveness")
    async def live() -> Health:
        return Health(status="live")

    @found.get(
        "/health/ready", summary="Whether commands and reads can be answered", operation_id="get_readiness",
        responses={503: {"model": Health, "description": "Some cannot."}},
    )  # fmt: skip
    async def ready(response: Response) -> Health:
        nonlocal looking
        if looking is None or looking.done():  # those who ask at once, perhaps strangers, share one look
            looking = asyncio.gather(*(_wrong_with(app, routes) for app, routes in apps))
        found = await asyncio.shield(looking)
        if wrong := [why for whys in found for why in whys]:
            response.status_code = 503
            return Health(status="not ready", why=wrong)
        return Health(status="ready")

    return found


async def _wrong_with(app: App, routes: _Routes) -> list[str]:
    """Why commands or views of an App cannot be answered, within a few seconds."""
    try:
        async with asyncio.timeout(_READY_SECONDS):
            if app.deciders:
                await routes.client.client()
                await routes.probe.check()
            for view in app.views:
                with suppress(ViewNotBuilt):  # it answers, and says that it is not built
                    await (await routes.views.client())[view].adescribe()
    except LeftfoldError as error:
        return [f"{app.name}: {error}"]
    except TimeoutError:
        return [f"{app.name}: no answer within {_READY_SECONDS:g} s"]
    return []


def _add_metrics(found: APIRouter, access: Access, shown: Callable[[], bytes]) -> None:
    @found.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        await access.principal(request)
        return Response(await run_in_threadpool(shown), media_type=_PROMETHEUS)


def _add_handlers(found: FastAPI) -> None:
    """Answers what no route does with problems, too: unknown paths, and errors that Leftfold does not know."""

    @found.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        return problem_response(error, request.scope)

    @found.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        return problem_response(error, request.scope)  # the server logs it


def _describe(found: FastAPI) -> None:
    """Makes the description exact where FastAPI adds to it, and where generators of clients would take it literally."""
    make = found.openapi

    def openapi() -> dict[str, Any]:
        if found.openapi_schema is not None:
            return found.openapi_schema
        document = make()
        schemas = document["components"]["schemas"]
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for operation in operations:
            answers = operation["responses"]
            for status, answer in list(answers.items()):
                if "HTTPValidationError" in str(answer):
                    del answers[status]
                elif PROBLEM_JSON in answer.get("content", {}):
                    answer["content"].pop("application/json", None)
        sent = _named_in([operation.get("requestBody") for operation in operations], schemas)
        for name, schema in schemas.items():
            _write_decimals_as_text(schema)
            if name not in sent and name != Problem.__name__ and "properties" in schema:
                schema["required"] = list(schema["properties"])  # an answer has every field, also those with a default
        return document

    found.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation extends it


def _named_in(part: Any, schemas: Mapping[str, Any]) -> set[str]:
    """The names of the schemas that a part of the description refers to, directly or not."""
    names, parts = set[str](), [part]
    while parts:
        one = parts.pop()
        if isinstance(one, dict):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name in schemas and name not in names:
                names.add(name)
                parts.append(schemas[name])
        parts += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return names


def _write_decimals_as_text(schema: Any) -> None:
    """Leaves the text of a Decimal, which pydantic also takes as a number: clients would send a float."""
    kinds = schema.get("anyOf", []) if isinstance(schema, dict) else []
    if {"number", "string"} <= {one.get("type") for one in kinds}:
        texts = [one for one in kinds if one.get("type") != "number"]
        if len(texts) > 1:
            schema["anyOf"] = texts
        else:
            del schema["anyOf"]
            schema.update(texts[0])
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _write_decimals_as_text(one)
