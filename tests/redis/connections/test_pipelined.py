"""One asyncio connection for many coroutines: no coroutine ever gets another's reply."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold.errors import InfrastructureError
from leftfold.ports.queries import Registered
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.asyncio import PipelinedConnection, RoutedAsyncClient, open_pipelined
from leftfold.redis.connection.protocol import RedisQuery, connect, packed
from leftfold.redis.connection.topology import topology_of
from leftfold.redis.pubsub import LoopClients
from leftfold.redis.reads import compile_query
from leftfold.testing.contracts.readers import new_generation
from tests.redis.server import RedisServer

_numbers = itertools.count()


class Collected(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None:
        self.aborted = True


class Forgetful(PipelinedConnection):
    """Takes a cancelled exchange out of the queue, as if its replies did not come."""

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Forgets that replies are owed."""
        try:
            return await super().exchange(commands)
        except asyncio.CancelledError:
            for owed in [owed for owed in self._pending if owed.future.cancelled()]:
                self._pending.remove(owed)
            raise


def echo(words: Sequence[str]) -> list[bytes]:
    """Commands that come back as they went."""
    return [packed("ECHO", word) for word in words]


def opened(
    timeout: float = 5.0, kind: type[PipelinedConnection] = PipelinedConnection
) -> tuple[PipelinedConnection, Collected]:
    """A line on a transport that goes nowhere."""
    line, transport = kind(timeout), Collected()
    line.connection_made(transport)
    return line, transport


async def tick(times: int = 2) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_what_is_asked_in_one_tick_leaves_in_one_write() -> None:
    async def ask() -> list[bytes]:
        line, transport = opened()
        tasks = [asyncio.create_task(line.exchange(echo([f"{n}a", f"{n}b"]))) for n in range(32)]
        await tick()
        line.close()
        assert len(await asyncio.gather(*tasks, return_exceptions=True)) == 32
        return transport.writes

    assert asyncio.run(ask()) == [b"".join(b"".join(echo([f"{n}a", f"{n}b"])) for n in range(32))]


@pytest.mark.parametrize(("kind", "third"), [(PipelinedConnection, b"c"), (Forgetful, b"b")], ids=["", "twin"])
def test_an_exchange_that_is_given_up_shifts_no_reply(kind: type[PipelinedConnection], third: bytes) -> None:
    async def exchange() -> list[list[Any]]:
        line, _ = opened(kind=kind)
        tasks = [asyncio.create_task(line.exchange(echo([word]))) for word in "abc"]
        await tick()
        tasks[1].cancel()
        await tick()
        for word in (b"a", b"b", b"c"):
            line.data_received(b"$1\r\n%b\r\n" % word)
        return [await tasks[0], await tasks[2]]

    assert asyncio.run(exchange()) == [[b"a"], [third]]


@given(
    asked=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    gives_up_at=st.integers(0, 5),
)
def test_replies_are_handed_out_in_order_however_they_are_cut(
    asked: list[tuple[int, bool]], cuts: list[int], gives_up_at: int
) -> None:
    async def exchange() -> list[object]:
        line, _ = opened()
        words = [[f"{n}.{m}" for m in range(count)] for n, (count, _) in enumerate(asked)]
        tasks = [asyncio.create_task(line.exchange(echo(some))) for some in words]
        await tick()
        data = b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for some in words for w in some)
        places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
        for number, (start, end) in enumerate(itertools.pairwise(places)):
            if number == gives_up_at:
                for task, (_, gives_up) in zip(tasks, asked, strict=True):
                    if gives_up:
                        task.cancel()
                await tick()
            line.data_received(data[start:end])
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    for number, (found, (count, gives_up)) in enumerate(zip(asyncio.run(exchange()), asked, strict=True)):
        expected = [f"{number}.{m}".encode() for m in range(count)]
        assert found == expected or (gives_up and isinstance(found, asyncio.CancelledError))


@pytest.mark.parametrize(("data", "why"), [(b"+OK\r\n", "closed"), (b"HTTP/1.1 400 Bad\r\n\r\n", "Protocol error")])
def test_a_reply_that_was_not_asked_for_and_what_is_none_end_the_line(data: bytes, why: str) -> None:
    async def ask() -> bool:
        line, transport = opened()
        if why == "closed":
            line.data_received(data)
        task = asyncio.create_task(line.exchange(echo(["a"])))
        await tick()
        if why != "closed":
            line.data_received(data)
        with pytest.raises(OSError, match=why):
            await task
        return transport.aborted

    assert asyncio.run(ask())


def test_a_server_that_takes_no_more_is_written_to_later() -> None:
    async def ask() -> list[int]:
        line, transport = opened()
        line.pause_writing()
        tasks = [asyncio.create_task(line.exchange(echo([word]))) for word in "ab"]
        await tick()
        counts = [len(transport.writes)]
        line.resume_writing()
        counts.append(len(transport.writes))
        line.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        return counts

    assert asyncio.run(ask()) == [0, 1]


@pytest.mark.servers
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["stays", "before", "after"])), min_size=1, max_size=30))
def test_on_a_real_server_every_one_gets_its_own(server: RedisServer, asked: list[tuple[int, str]]) -> None:
    async def one(line: PipelinedConnection, count: int, when: str) -> None:
        words = [f"{next(_numbers)}-{m}" for m in range(count)]
        task = asyncio.create_task(line.exchange(echo(words)))
        await tick(0 if when == "before" else 3)
        if when != "stays":
            task.cancel()
        try:
            assert await task == [word.encode() for word in words]
        except asyncio.CancelledError:
            assert when != "stays"

    async def all_of_them() -> None:
        line = await open_pipelined(server.settings)
        await asyncio.gather(*(one(line, count, when) for count, when in asked))
        assert await line.exchange(echo(["last"])) == [b"last"]
        line.close()
        await line.closed

    asyncio.run(all_of_them())


@pytest.mark.servers
def test_one_that_is_given_up_while_connecting_or_refused_fails_alone(server: RedisServer) -> None:
    wrong = RedisQuery[Any]([(b"HGETALL", b"a string")], lambda replies: pytest.fail("an error is no answer"))

    async def ask() -> None:
        client, right = RoutedAsyncClient(topology_of(server.settings)), compile_query(Registered("nothing"))
        tasks = [asyncio.create_task(client.ask(one)) for one in (right, right, wrong, right)]
        await tick()
        tasks[0].cancel()
        given_up, first, refused, second = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(given_up, asyncio.CancelledError)
        assert isinstance(refused, InfrastructureError)
        assert "WRONGTYPE" in str(refused)
        assert first == second
        assert not isinstance(first, BaseException)
        await client.aclose()

    with server.client() as client:
        client.set("a string", "x")
    asyncio.run(ask())


def test_closing_gives_up_what_a_thread_waits_for_and_leaves_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """As after Ctrl-C: a thread that was interrupted while it began to listen leaves that under way."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        store = RedisViewStore(RedisSettings(url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        listens = pool.submit(store.listen, new_generation(), None)
        connection, _ = silent.accept()  # and then says nothing
        store.close()
        with pytest.raises(InfrastructureError, match="is closed"):
            listens.result(240.0)
        connection.close()
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if "destroyed" in record.getMessage()]


def test_an_idle_connection_is_probed_after_half_a_minute() -> None:
    options = {socket.SO_KEEPALIVE: 1, socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}

    def chosen(one: Any) -> dict[int, int]:
        levels = dict.fromkeys(options, socket.IPPROTO_TCP) | {socket.SO_KEEPALIVE: socket.SOL_SOCKET}
        return {option: one.getsockopt(level, option) for option, level in levels.items()}

    async def of_a_loop(settings: RedisSettings) -> dict[int, int]:
        line = await open_pipelined(settings)
        assert line._transport is not None
        found = chosen(line._transport.get_extra_info("socket"))
        line.close()
        await line.closed
        return found

    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = RedisSettings(url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        assert asyncio.run(of_a_loop(settings)) == options
        with connect(settings) as raw:
            assert chosen(raw) == options


def test_a_loop_that_was_closed_without_its_generators_is_not_kept() -> None:
    settings = RedisSettings(url="redis://127.0.0.1:1/0")
    clients = LoopClients(settings, topology_of(settings))
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(clients.get())
        loop.close()
        assert list(clients._clients) == [loop], "those before it"
    clients.drop_closed()
    assert not clients._clients
