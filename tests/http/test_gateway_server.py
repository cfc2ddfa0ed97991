"""The server of a gateway under slow, large and many requests, and when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from fastapi import FastAPI

from leftfold import memory
from leftfold.http import Access, CertificateHeader, GatewayServer, gateway, server_sent_events
from leftfold.http.access import hash_of
from leftfold.http.feeds import _CATCHING_UP, Feed
from leftfold.http.routes import token_of
from leftfold.model.position import Position
from tests.domains.shop import Open, app
from tests.http.calls import NOW, StandIn
from tests.http.serving import Caller, serving
from tests.waiting import WAIT_SECONDS, wait_until

MIB = 1_048_576
POST = b"POST /commands/baskets/Open HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
BATCH = POST.replace(b"Open ", b"Open:batch ").replace(b"json", b"x-ndjson")
OPEN = b'{"basket_id": "b", "household": "h"}'
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def shop(**options: Any) -> Iterator[FastAPI]:
    """A gateway of a shop in memory."""
    with memory(app, now=NOW) as world:
        yield gateway([(app, world)], **options)


@contextmanager
def serving_shop(body_seconds: float = 60.0, access: Access | None = None, **options: Any) -> Iterator[GatewayServer]:
    with shop(body_seconds=body_seconds, access=access) as api, serving(api, **options) as server:
        yield server


@contextmanager
def dripping(slow: Caller, first: bytes, drop: bytes) -> Iterator[None]:
    """The caller writes one drop after another until the block ends."""
    stop = threading.Event()

    def drip() -> None:
        with suppress(ConnectionError):  # the server ends the connection meanwhile
            slow.send(first)
            while not stop.wait(0.01):
                slow.send(drop)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


@contextmanager
def growing_less_than(limit: int) -> Iterator[None]:
    """The process has so many bytes more at most, at any time within the block: the kernel keeps the peak."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # resets it, see proc(5)
    before = _peak()
    yield
    assert _peak() - before < limit


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_a_request_line_that_does_not_end_is_answered_and_others_are_meanwhile() -> None:
    with serving_shop(head_seconds=3.0) as server, Caller(server) as slow:
        slow.send(b"GET /health/li")
        with Caller(server) as other:
            assert other.get("/health/live").status == 200
        answer = slow.answer()
        assert answer.problem()["detail"] == "the headers took more than 3 s"
        assert (answer.status, answer.headers["connection"], slow.rest()) == (408, "close", b"")


def test_headers_that_drip_have_no_more_time_than_those_that_stop() -> None:
    begin, drop = b"GET /health/live HTTP/1.1\r\n", b"x: y\r\n"
    with serving_shop(head_seconds=2.0) as server, Caller(server) as slow, dripping(slow, begin, drop):
        assert slow.answer().status == 408


def test_half_a_request_behind_a_whole_one_has_a_limit_too() -> None:
    with serving_shop(head_seconds=3.0) as server, Caller(server) as slow:
        assert slow.get("/health/live").status == 200
        slow.send(b"GET /health/live HTTP/1.1\r\n")
        assert slow.answer().status == 408


def test_a_connection_without_a_request_is_closed_without_an_answer() -> None:
    with serving_shop(head_seconds=0.2) as server, Caller(server) as silent:
        assert silent.rest() == b""


def test_a_body_that_drips_has_a_limit_however_it_drips() -> None:
    begin = POST + b"Content-Length: 100000\r\n\r\n"
    with (
        serving_shop(body_seconds=0.3) as server,
        Caller(server) as slow,
        Caller(server) as other,
        dripping(slow, begin, b" "),
    ):
        assert slow.answer().problem()["detail"] == "the body took more than 0.3 s"
        assert other.get("/health/live").status == 200


def test_the_rest_of_a_refused_body_is_not_waited_for_without_end() -> None:
    with serving_shop(head_seconds=2.0) as server, Caller(server) as slow:
        slow.send(POST, b"Content-Length: 104857600\r\n\r\n")
        assert slow.answer().status == 413
        slow.send(b"x")
        assert slow.rest() == b""


def test_a_batch_may_take_long_while_its_lines_arrive_and_ends_when_they_stop() -> None:
    with serving_shop(body_seconds=3.0) as server, Caller(server) as slow:
        slow.send(BATCH, CHUNKED, chunk(OPEN + b"\n"))
        found = slow.send(chunk(OPEN[:9])).chunks()
        first, last = (json.loads(line) for line in found.splitlines())
        assert (first["version"], last["status"]) == (1, 408)


@pytest.mark.parametrize("how", ["a length", "chunks"])
def test_a_body_of_100_mib_is_refused_in_bounded_memory(how: str) -> None:
    part = b"x" * 65_536
    parts = [part] * 1600 if how == "a length" else [*[chunk(part)] * 1600, b"0\r\n\r\n"]
    with serving_shop() as server, Caller(server) as large, growing_less_than(30 * MIB):
        large.send(POST, b"Content-Length: 104857600\r\n\r\n" if how == "a length" else CHUNKED, *parts)
        assert large.answer().problem()["status"] == 413
        assert large.get("/health/live").status == 200, "the rest of the body was read"


@pytest.mark.parametrize("size", [70_000, 1_000_000, 20_000_000])
def test_headers_that_are_too_large_are_refused(size: int) -> None:
    with serving_shop() as server, Caller(server) as large, growing_less_than(30 * MIB):
        large.send(b"GET /health/live HTTP/1.1\r\nHost: gateway\r\nX: ", b"x" * size, b"\r\n\r\n")
        assert large.answer().problem()["status"] == 431


def test_trailers_of_a_body_are_no_headers_which_a_proxy_would_have_removed() -> None:
    proxy = Access(certificates=CertificateHeader("X-Client-Subject", ["127.0.0.0/8"]))
    with serving_shop(access=proxy) as server, Caller(server) as forged:
        forged.send(POST, CHUNKED, chunk(OPEN), b"0\r\nX-Client-Subject: CN=admin\r\n\r\n")
        assert forged.answer().problem()["status"] == 401
        read = b"GET /views/open_baskets/b HTTP/1.1\r\nHost: gateway\r\n"
        forged.send(read + CHUNKED + b"0\r\nX-Client-Subject: CN=admin\r\n\r\n")
        assert forged.answer().problem()["status"] == 401


def test_trailers_without_an_end_take_no_memory_and_end_the_connection() -> None:
    with serving_shop() as server, Caller(server) as endless, growing_less_than(30 * MIB):
        with suppress(ConnectionError):
            endless.send(POST, CHUNKED, chunk(OPEN), b"0\r\n", *[b"a:b\r\n" * 10_000] * 200)
        with suppress(ConnectionError):
            endless.rest()


def test_the_body_of_a_caller_without_credentials_is_not_waited_for() -> None:
    with serving_shop(access=Access({hash_of("secret"): "ann"})) as server, Caller(server) as stranger:
        stranger.send(POST, b"Content-Length: 1000000\r\n\r\n")
        assert stranger.answer().problem()["status"] == 401


def test_a_batch_that_the_end_of_the_server_cuts_off_says_that_its_outcome_is_not_known() -> None:
    """And not that nothing was sent: sent again without its key it would happen twice."""
    with memory(app, now=NOW) as world, ExitStack() as opened:
        released = threading.Event()

        def send_many(*commands: Any, **options: Any) -> Any:
            found = world.client.send_many(*commands, **options)
            released.wait(WAIT_SECONDS)
            return found

        held = StandIn(world, client=StandIn(world.client, send_many=send_many))
        opened.callback(released.set)
        with serving(gateway([(app, held)]), timeout_graceful_shutdown=1) as server:
            waiting = opened.enter_context(Caller(server))
            waiting.send(BATCH, b"Content-Length: %d\r\n\r\n" % len(OPEN), OPEN)
            wait_until(lambda: list(world.stream("baskets", "b")), "the event")
        first, last = (json.loads(line) for line in waiting.chunks().splitlines())
        assert (first["status"], last["status"]) == (202, 503)


def test_what_is_no_http_is_a_problem() -> None:
    with serving_shop() as server, Caller(server) as wrong:
        assert wrong.send(b"\x16\x03\x01 hello\r\n\r\n").answer().problem()["status"] == 400


@pytest.fixture
def most_files() -> Iterator[int]:
    """How many files this process and those that it starts may open each, which is as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("most_files")
def test_others_are_answered_beside_2000_idle_connections_which_end() -> None:
    with serving_shop(head_seconds=5.0) as server, ExitStack() as idle, growing_less_than(60 * MIB):
        for _ in range(2000):
            idle.enter_context(Caller(server))
        with Caller(server) as other:
            assert other.get("/health/live").status == 200
        wait_until(lambda: not server.server_state.connections, "the end of idle connections")


class ServedProcess(NamedTuple):
    """A gateway in a process of its own."""

    id: int
    port: int


@contextmanager
def served_in_a_process() -> Iterator[ServedProcess]:
    script = """
from datetime import UTC, datetime
from leftfold import memory
from leftfold.http import gateway
from tests.domains.shop import app
from tests.http.serving import serving

with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world, serving(gateway([(app, world)])) as server:
    print(server.port, flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ServedProcess(process.pid, int(process.stdout.readline()))
        finally:
            process.kill()


@pytest.mark.faults
def test_ten_thousand_idle_listeners_take_little_memory_each_and_hear_what_happens(most_files: int) -> None:
    """Each is one file on both sides."""
    count = 10_000
    if most_files < count + 500:
        why = f"a process may open {most_files:,} files here, too few for {count:,} listeners; raise ulimit -Hn"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    with served_in_a_process() as server, ExitStack() as opened:
        memory_used = psutil.Process(server.id).memory_info

        def begin() -> Caller:
            caller = opened.enter_context(Caller(server))
            caller.send(b"GET /changes/open_baskets HTTP/1.1\r\nHost: gateway\r\n\r\n")
            assert caller.head()[0] == 200
            return caller

        first = begin()
        before = memory_used().rss
        listeners = [first, *(begin() for _ in range(count))]
        assert (memory_used().rss - before) / count < 100_000
        with Caller(server) as other:
            opening = b"Content-Length: %d\r\n\r\n%b" % (len(OPEN), OPEN)
            assert other.send(POST, opening).answer().status == 200
            assert other.get("/views/open_baskets/b").status == 200
        for listener in listeners:
            while not (line := listener.line()).startswith(b"data: "):
                assert line
            assert json.loads(line[6:])["key"] == "b"
        assert (memory_used().rss - before) / count < 100_000


def test_connections_beyond_the_limit_are_refused_and_those_within_it_answered() -> None:
    with serving_shop(max_connections=2) as server, Caller(server) as one, Caller(server) as two:
        assert (one.get("/health/live").status, two.get("/health/live").status) == (200, 200)
        with Caller(server) as third:
            answer = third.get("/health/live")
            assert (answer.problem()["status"], answer.headers["retry-after"]) == (503, "1")
            assert (answer.headers["connection"], third.rest()) == ("close", b"")
        with Caller(server) as third:
            listening = b"GET /changes/open_baskets HTTP/1.1\r\nHost: g\r\nAccept: text/event-stream\r\n\r\n"
            answer = third.send(listening).answer()
            assert (answer.status, answer.headers["content-type"][:17]) == (200, "text/event-stream")
            assert answer.body.startswith(b"retry: 5000\nevent: problem\ndata: {")
        assert one.get("/health/live").status == 200


def test_listeners_that_read_nothing_are_dropped_so_that_others_catch_up_and_continue_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take all places of those who catch up; without an end of that, the next one is refused: see `test_feeds`."""
    monkeypatch.setattr(server_sent_events, "Feed", partial(Feed, queue_seconds=WAIT_SECONDS))
    with memory(app, now=NOW) as world, ExitStack() as opened:
        expected = [f"b{number}" for number in range(500)]
        world.client.send_many([Open(basket_id=key, household="h" * 20_000) for key in expected])
        server = opened.enter_context(serving(gateway([(app, world)]), stall_seconds=3.0))
        stalled = [opened.enter_context(Caller(server, buffer=4096)) for _ in range(_CATCHING_UP)]
        for caller in stalled:
            assert caller.send(listen("from_start=true")).head()[0] == 200
        with Caller(server) as other:
            assert other.send(listen("from_start=true")).head()[0] == 200
            assert sorted(key for _, key in events(other, 500)) == sorted(expected)
        wait_until(lambda: not server.server_state.connections, "the end of those who read nothing")
        before = list(events(stalled[0]))
        assert 0 < len(before) < 500
        with Caller(server) as again:
            assert again.send(listen("", before[-1][0])).head()[0] == 200
            assert sorted(key for _, key in [*before, *events(again, 500 - len(before))]) == sorted(expected)


def listen(query: str, last_id: str = "") -> bytes:
    header = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    return f"GET /events/baskets?{query} HTTP/1.1\r\nHost: gateway\r\n{header}\r\n".encode()


def events(caller: Caller, count: int | None = None) -> Iterator[tuple[str, str]]:
    """Ids and keys of so many events, or of those that came whole before the connection ended."""
    id_, left = "", count
    while left != 0 and (line := caller.line()):
        if line.startswith(b"id: "):
            id_ = line[4:].decode().strip()
        elif line.startswith(b"data: ") and line.endswith(b"\n"):
            left = left and left - 1
            yield id_, json.loads(line[6:])["key"]


def test_a_read_that_waits_longer_than_the_server_lives_is_answered() -> None:
    late = token_of(Position.at("baskets.events", 0, 10**9))
    with ExitStack() as opened:
        with serving_shop(timeout_graceful_shutdown=1) as server:
            waiting = opened.enter_context(Caller(server))
            waiting.send(f"GET /views/household_spend?after={late}&timeout=60 HTTP/1.1\r\nHost: g\r\n\r\n".encode())
        answer = waiting.answer()
        assert (answer.problem()["detail"], answer.headers["retry-after"]) == ("this gateway ends; ask again", "1")


def test_who_had_connected_when_it_ends_is_answered_and_a_kept_connection_ends_with_its_answer() -> None:
    """The server's loop has no turn between the connection and the end: only what it does at the end can help."""

    async def ended(api: FastAPI) -> None:
        server = GatewayServer(api)
        running = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
            await asyncio.sleep(0.01)
        with Caller(server) as kept, Caller(server) as waiting:
            assert (await asyncio.to_thread(kept.get, "/health/live")).headers.get("connection") is None
            for caller in (kept, waiting, late := Caller(server)):
                caller.send(b"GET /health/live HTTP/1.1\r\nHost: gateway\r\n\r\n")
            with late:
                server.should_exit = True
                await server.shutdown()
                for caller in (kept, waiting, late):
                    answer = await asyncio.to_thread(caller.answer)
                    assert (answer.status, answer.headers["connection"]) == (200, "close")
        server.started = False  # it has shut down
        await running

    with shop() as api:
        asyncio.run(ended(api))
