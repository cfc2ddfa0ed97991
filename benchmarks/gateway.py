"""The HTTP gateway under load: commands and reads of 64 connections, and listeners of changes.

Everything runs on one machine: broker, Redis, `leftfold run` with a worker and a projector, `leftfold serve`, and what
sends the requests. The peers in the same run are the bare client without HTTP, and the same service on FastAPI,
SQLAlchemy and PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import count

from benchmarks.figure import Figure
from benchmarks.peer import PROGRAMS, NotInstalled, peer_python
from leftfold import App, Command, Decider, DomainError, Event, FoldView, connect
from leftfold.local import Servers

__all__ = ["app", "gateway"]

CONNECTIONS, SECONDS, WARM_SECONDS, KEYS = 64, 10.0, 20.0, 500
LISTENERS, RATE = 1_000, 1_000
START_SECONDS = 60.0


class Added(Event, category="carts", key="cart"):
    """Something was put into a cart."""

    cart: str
    product: str
    quantity: int
    price: Decimal


class TooFew(DomainError):
    """Something is put in, never taken out."""

    quantity: int


class Put(Command, category="carts", key="cart", rejects=(TooFew,)):
    """Put something into a cart."""

    cart: str
    product: str
    quantity: int
    price: Decimal


@dataclass(frozen=True)
class Cart:
    """A cart as it is now."""

    items: int = 0
    total: Decimal = Decimal(0)
    last: str = ""


def _decide(command: Put, state: Cart) -> list[Added]:
    if command.quantity < 1:
        raise TooFew(quantity=command.quantity)
    return [Added(cart=command.cart, product=command.product, quantity=command.quantity, price=command.price)]


def _evolve(state: Cart, event: Added) -> Cart:
    return Cart(state.items + event.quantity, state.total + event.quantity * event.price, event.product)


def _row(row: Cart | None, event: Added) -> Cart:
    return _evolve(row or Cart(), event)


carts = FoldView("carts", events=Added, row=Cart, evolve=_row)
app = App(
    "gatewaybench",
    partitions=12,
    deciders=[
        Decider("carts", state=Cart, initial_state=Cart(), commands=Put, events=Added, decide=_decide, evolve=_evolve)
    ],
    views=[carts],
)


def gateway(servers: Servers) -> list[Figure]:
    """The gateway, then the bare client on the same servers, then the peer."""
    figures = []
    with _running(servers):
        bare_sent, _ = asyncio.run(_bare(servers, _sender))
        with _served(servers) as port:
            sent, sent_p99 = asyncio.run(_load(port, _posts()))
            read, read_p99 = asyncio.run(_load(port, _gets()))
            changes = asyncio.run(_listen(port))
        bare_read, _ = asyncio.run(_bare(servers, _reader))
    figures += [
        Figure("gateway.commands", sent, "commands/s", goal=5_000, note=f"{CONNECTIONS} connections, {_cores()}"),
        Figure("gateway.commands_p99", sent_p99, "ms", goal=50, smaller=True),
        Figure("gateway.commands_bare", sent, "commands/s", peer=bare_sent, note="peer: asend of the client, no HTTP"),
        Figure("gateway.reads", read, "reads/s", goal=8_000, note=f"{CONNECTIONS} connections, {_cores()}"),
        Figure("gateway.reads_p99", read_p99, "ms", goal=50, smaller=True),
        Figure("gateway.reads_bare", read, "reads/s", peer=bare_read, note="peer: aget of the reader, no HTTP"),
        Figure("gateway.listeners_p99", changes, "ms", goal=250, smaller=True,
               note=f"{LISTENERS:,} listeners, {RATE:,} changes/s, from the command's being sent to the change"),
    ]  # fmt: skip
    try:
        with _postgres() as port:
            peer_sent, peer_sent_p99 = asyncio.run(_load(port, _posts()))
            peer_read, _ = asyncio.run(_load(port, _gets()))
    except NotInstalled as error:
        print(f"no PostgreSQL to compare with: {error}", file=sys.stderr)
        return figures
    peer = f"peer: FastAPI, SQLAlchemy, PostgreSQL; its p99 {peer_sent_p99:.0f} ms"
    return [
        *figures,
        Figure("gateway.commands_postgres", sent, "commands/s", peer=peer_sent, goal=1.5, note=peer),
        Figure("gateway.reads_postgres", read, "reads/s", peer=peer_read, goal=1.5, note=peer),
    ]


def _cores() -> str:
    return f"{os.cpu_count()} cores for everything"


Request = Callable[[], bytes]


def _posts() -> Request:
    """Commands to many carts, each with a key of its own."""
    numbers, run_id = count(), os.urandom(4).hex()

    def make() -> bytes:
        number = next(numbers)
        body = b'{"cart":"c-%d","product":"tea","quantity":2,"price":"3.20"}' % (number % KEYS)
        head = b"POST /commands/carts/Put HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        key = f"Idempotency-Key: {run_id}-{number}\r\n".encode()
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, key, len(body), body)

    return make


def _gets() -> Request:
    numbers = count()
    return lambda: b"GET /views/carts/c-%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (next(numbers) % KEYS)


class _Connection(asyncio.Protocol):
    """A connection that sends its next request as soon as the answer has come."""

    def __init__(self, make: Request, times: list[tuple[float, float]]) -> None:
        self._make, self._times = make, times
        self._buffer, self._began = b"", 0.0
        self.failed = ""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # of a TCP connection
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed = (head + b"\n" + body).decode()
            self._transport.close()
            return
        self._buffer = b""
        self._times.append((time.perf_counter(), time.perf_counter() - self._began))
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        self._transport.close()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._make())


async def _load(port: int, make: Request) -> tuple[float, float]:
    """Requests a second, and the 99th percentile of their times in ms, after some seconds to warm up."""
    times: list[tuple[float, float]] = []
    loop = asyncio.get_running_loop()
    found = [
        await loop.create_connection(lambda: _Connection(make, times), "127.0.0.1", port) for _ in range(CONNECTIONS)
    ]
    connections = [protocol for _, protocol in found]
    await asyncio.sleep(WARM_SECONDS)
    began = time.perf_counter()
    await asyncio.sleep(SECONDS)
    ended = time.perf_counter()
    for connection in connections:
        connection.close()
    for connection in connections:
        await connection.closed
        if connection.failed:
            raise SystemExit(f"a request failed: {connection.failed}")
    return _measured(times, began, ended)


def _measured(times: list[tuple[float, float]], began: float, ended: float) -> tuple[float, float]:
    counted = sorted(seconds for at, seconds in times if began <= at < ended)
    return len(counted) / (ended - began), counted[int(len(counted) * 0.99)] * 1000


Call = Callable[[], Awaitable[object]]


async def _bare(servers: Servers, caller: Callable[..., Call]) -> tuple[float, float]:
    """Calls a second of as many coroutines as the gateway has connections, without HTTP."""
    times: list[tuple[float, float]] = []
    with connect(app, kafka=servers.kafka, redis=servers.redis) as connection:
        call, ends = caller(connection), time.perf_counter() + WARM_SECONDS + SECONDS

        async def repeat() -> None:
            while (began := time.perf_counter()) < ends:
                await call()
                times.append((time.perf_counter(), time.perf_counter() - began))

        await asyncio.gather(*(repeat() for _ in range(CONNECTIONS)))
    return _measured(times, ends - SECONDS, ends)


def _sender(connection: object) -> Call:
    numbers, client = count(), connection.client  # type: ignore[attr-defined]

    def call() -> Awaitable[object]:
        put = Put(cart=f"c-{next(numbers) % KEYS}", product="tea", quantity=2, price=Decimal("3.20"))
        return client.asend(put)  # type: ignore[no-any-return]

    return call


def _reader(connection: object) -> Call:
    numbers, reader = count(), connection.views[carts]  # type: ignore[attr-defined]
    return lambda: reader.aget(f"c-{next(numbers) % KEYS}")


class _Listener(asyncio.Protocol):
    """A listener of changes; the last product of a row is the time at which its command was sent."""

    def __init__(self, times: list[float]) -> None:
        self._times, self.newest, self._rest = times, 0.0, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # of a TCP connection
        self.transport.write(b"GET /changes/carts HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        if not self._rest and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a listener was refused: {data.decode()}")
        if (first := _value(data, data.find(_LAST))) is not None:
            self._times.append(time.time() - first)
        both = self._rest + data  # a value may come in two parts
        self.newest = _value(both, both.rfind(_LAST)) or self.newest
        self._rest = both[-len(_LAST) - 30 :]


_LAST = b'"last":"'


def _value(data: bytes, at: int) -> float | None:
    """The time behind a place in the data; None when there is none, or not the whole of it."""
    begin = at + len(_LAST)
    end = data.find(b'"', begin)
    return float(data[begin:end]) if at >= 0 and end >= 0 and data[begin:end] != b"tea" else None


async def _listen(port: int) -> float:
    """The 99th percentile of the time from sending a command to its change at a listener, in ms."""
    times: list[float] = []
    loop = asyncio.get_running_loop()
    listeners = []
    for _ in range(LISTENERS):
        _, listener = await loop.create_connection(lambda: _Listener(times), "127.0.0.1", port)
        listeners.append(listener)
    await asyncio.sleep(WARM_SECONDS)
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gateway", str(port), str(RATE), str(SECONDS)
    )
    await sender.wait()
    await asyncio.sleep(5.0)
    for listener in listeners:
        listener.transport.close()
    if len({listener.newest for listener in listeners}) != 1:
        raise SystemExit("some listeners have not got the last changes")
    found = sorted(times)
    return found[int(len(found) * 0.99)] * 1000


def _send_steadily(port: int, rate: int, seconds: float) -> None:
    """Sends batches of commands, each with its time as the product."""
    began, sent = time.time(), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        answers = connection.makefile("rb")
        while sent < rate * seconds:
            due = min(int((time.time() - began) * rate), int(rate * seconds)) - sent
            if due <= 0:
                time.sleep(0.005)
                continue
            now = time.time()
            lines = b"".join(
                b'{"cart":"c-%d","product":"%f","quantity":1,"price":"1"}\n' % ((sent + n) % KEYS, now)
                for n in range(due)
            )
            head = b"POST /commands/carts/Put:batch HTTP/1.1\r\nHost: localhost\r\n"
            head += b"Content-Type: application/x-ndjson\r\n"
            connection.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(lines), lines))
            while answers.readline() not in (b"0\r\n", b""):
                pass
            answers.readline()
            sent += due


@contextmanager
def _running(servers: Servers) -> Iterator[None]:
    """The App's worker and projector."""
    with _process(["run"], servers):
        with connect(app, kafka=servers.kafka, redis=servers.redis) as connection:
            _until(lambda: connection.client.send(Put(cart="c-0", product="tea", quantity=1, price=Decimal(1))))
            puts = [Put(cart=f"c-{number}", product="tea", quantity=1, price=Decimal(1)) for number in range(KEYS)]
            connection.client.send_many(puts, timeout=START_SECONDS)
            _until(connection.views[carts].describe)
        yield


@contextmanager
def _served(servers: Servers) -> Iterator[int]:
    port = _free_port()
    with _process(["serve", "--port", str(port)], servers):
        _until(lambda: socket.create_connection(("127.0.0.1", port)).close())
        yield port


@contextmanager
def _process(arguments: list[str], servers: Servers) -> Iterator[None]:
    command = [sys.executable, "-m", "leftfold.cli", *arguments, "--app", "benchmarks.gateway:app"]
    where = {"LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": servers.kafka, "LEFTFOLD_REDIS_URL": servers.redis}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | where)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _postgres() -> Iterator[int]:
    python, port = peer_python("postgres"), _free_port()
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        command = [str(python), "-P", str(PROGRAMS / "postgres.py"), folder, str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise SystemExit("the service on PostgreSQL does not start")
            _until(lambda: socket.create_connection(("127.0.0.1", port)).close())
            yield port
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(call: Callable[[], object]) -> None:
    """Calls until it works."""
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            call()
        except Exception:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    _send_steadily(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
