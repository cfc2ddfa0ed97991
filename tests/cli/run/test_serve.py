"""`leftfold serve` in front of real servers: a journey, a rolling restart, and servers that are down."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from leftfold.http import hash_of
from leftfold.http.routes import position_in, token_of
from leftfold.local import embedded, kill, restart
from leftfold.model.position import Position
from tests.cli.shell import Shell, Typing, serving
from tests.free_ports import free_port, listens
from tests.servers import Addresses
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

APP = ("--app", "tests.domains.shop:app")
PATIENT = 60.0
"""Seconds that a caller waits; a gateway answers long before."""
BUSY = 1.0
"""Seconds behind which "not known yet" is a busy machine's answer; what a restart breaks is refused at once."""
HASTY = {"LEFTFOLD_KAFKA_REQUEST_TIMEOUT": "5"}
"""For gateways whose callers are to be answered while there is no broker."""


class Gateway:
    """A `leftfold serve` that can be ended and started again at its port."""

    def __init__(self, shell: Shell) -> None:
        self._shell, self.port = shell, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        process = self._shell.start(["serve", "--port", str(self.port), *APP])
        wait_until(lambda: listens(self.port), self._shell.said, WAIT_SECONDS, lambda: process.poll() is None)
        return process

    def end(self) -> int:
        """Ends it as an orchestrator does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)

    def restart(self) -> None:
        """Ends it, and starts it again."""
        assert self.end() == 0, self._shell.said()
        self.process = self._started()


@contextmanager
def gateways(
    place: Path, servers: Addresses, count: int = 1, environment: Mapping[str, str] | None = None
) -> Iterator[list[Gateway]]:
    """So many gateways in front of the same servers."""
    found: list[Gateway] = []
    with ExitStack() as ending:
        for number in range(count):
            found.append(Gateway(Shell(place, environment).at(servers).beside(f"gateway-{number}")))
            ending.callback(found[-1].end)
        yield found


def open_basket(http: httpx.Client, key: str, **more: Any) -> httpx.Response:
    """Sends a command whose Idempotency-Key is the basket's."""
    body = {"basket_id": key, "household": "h"}
    return http.post("/commands/baskets/Open", json=body, headers={"Idempotency-Key": key}, **more)


def wait_decided(http: httpx.Client, key: str) -> dict[str, Any]:
    """Sends the same command until it is accepted; its receipt."""
    found: list[dict[str, Any]] = []

    def is_decided() -> bool:
        answer = open_basket(http, key, params={"timeout": 2})
        assert answer.status_code in (200, 202, 503), answer.text
        found.extend([answer.json()] if answer.status_code == 200 else [])
        return bool(found)

    wait_until(is_decided, f"the decision of {key}")
    return found[0]


class Caller:
    """A client on a connection that it keeps; it moves to another gateway when nothing listens at this one."""

    def __init__(self, name: str, urls: Sequence[str]) -> None:
        self._name, self._urls = name, list(urls)
        self.answered, self.moves = 0, 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        with ExitStack() as opened:
            https = [opened.enter_context(httpx.Client(base_url=url, timeout=PATIENT)) for url in self._urls]
            while not self._stop.is_set() and not self.failures:
                try:
                    answer = open_basket(https[0], f"{self._name}-{self.answered}", params={"timeout": 30})
                    if answer.status_code == 200:
                        self.answered += 1
                    elif answer.status_code in (202, 503) and answer.elapsed.total_seconds() > BUSY:
                        self._stop.wait(0.1)
                    else:
                        self.failures.append(answer.text)
                except httpx.ConnectError:
                    self.moves += 1
                    https.append(https.pop(0))
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))


class Listener:
    """A client of server-sent events that continues at another gateway behind its last event."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self.ids: list[str] = []
        self.keys: list[str] = []
        self._last, self._stop = "", threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen(self._urls[0])
            except httpx.TransportError:
                self._urls.append(self._urls.pop(0))
                self._stop.wait(0.1)

    def _listen(self, url: str) -> None:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        address = f"{url}/events/baskets?from_start=true"
        with httpx.stream("GET", address, headers=headers, timeout=httpx.Timeout(PATIENT, read=3.0)) as answer:
            if answer.status_code == 503:
                raise httpx.RemoteProtocolError(f"{url} cannot serve yet, or not any more")
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    self._last = value
                elif name == "data" and "version" in (found := json.loads(value)):
                    self.ids.append(found["id"])
                    self.keys.append(found["key"])
                if self._stop.is_set():
                    return


def test_a_journey_and_a_rolling_restart_that_no_caller_notices(tmp_path: Path, empty_servers: Addresses) -> None:
    shell = Shell(tmp_path).at(empty_servers)
    with serving(shell, *APP), gateways(tmp_path, empty_servers, 2) as (one, other):
        with httpx.Client(base_url=one.url, timeout=PATIENT) as http:
            wait_until(lambda: http.get("/health/ready").json()["status"] == "ready", "readiness")
            receipt = wait_decided(http, "b-1")
            row = http.get("/views/open_baskets/b-1", params={"after": receipt["position"], "timeout": 30})
            assert (row.status_code, row.json()["lines"]) == (200, 0), row.text
            stream = http.get("/streams/baskets/b-1").json()
            assert [event["causation_id"] for event in stream["events"]] == ["b-1"]
        listener = Listener([one.url, other.url])
        callers = [Caller(f"caller-{number}", [one.url, other.url]) for number in range(2)]
        try:
            wait_until(lambda: all(caller.answered for caller in callers), "the first answers")
            late = token_of(_far_behind(position_in(receipt["position"])))
            with socket.create_connection(("127.0.0.1", one.port)) as waiting:
                # An answer that takes longer than the moment for which the gateway waits for idle connections.
                target = f"/views/open_baskets/b-1?after={late}&timeout=3"
                waiting.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                one.restart()
                assert waiting.makefile("rb").readline().startswith(b"HTTP/1.1 504")
            before = [caller.answered for caller in callers]
            wait_until(lambda: all(c.answered > n for c, n in zip(callers, before, strict=True)), "more answers")
            assert other.end() == 0
            before = [caller.answered for caller in callers]
            wait_until(lambda: all(c.answered > n for c, n in zip(callers, before, strict=True)), "their way back")
        finally:
            for caller in callers:
                caller.end()
            sent = {"b-1", *(f"{caller._name}-{number}" for caller in callers for number in range(caller.answered))}
            try:
                wait_until(lambda: sent <= set(listener.keys), lambda: f"{len(listener.keys)} of {len(sent)} events")
            finally:
                listener.end()
        assert len(set(listener.ids)) == len(listener.ids), "an event came twice"
        assert [caller.failures for caller in callers] == [[], []]
        assert all(caller.moves >= 2 for caller in callers)


@pytest.mark.faults
def test_a_command_to_a_killed_worker_is_decided_once_and_one_that_waits_as_its_gateway_ends_is_answered(
    tmp_path: Path, empty_servers: Addresses
) -> None:
    shell = Shell(tmp_path).at(empty_servers)
    with gateways(tmp_path, empty_servers) as (one,), httpx.Client(base_url=one.url, timeout=PATIENT) as http:
        with serving(shell, *APP) as run:
            wait_decided(http, "before")
            everything = [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]
            for process in everything:
                process.kill()
            psutil.wait_procs(everything, timeout=WAIT_SECONDS)
        for _ in range(3):
            unknown = open_basket(http, "during", params={"timeout": 1})
            assert unknown.status_code == 202, unknown.text
            assert unknown.headers["Location"] == "/commands/baskets/Open/during"
        with serving(shell, *APP):
            receipt = wait_decided(http, "during")
            stream = http.get("/streams/baskets/during").json()
            assert [event["causation_id"] for event in stream["events"]] == ["during"]
            again = http.get("/commands/baskets/Open/during")
            assert (again.status_code, again.json()) == (200, receipt)
            assert open_basket(http, "during").json() == receipt
        # The worker has ended, and now the gateway does.
        body = json.dumps({"basket_id": "w", "household": "h"}).encode()
        with socket.create_connection(("127.0.0.1", one.port)) as waiting:
            waiting.sendall(
                b"POST /commands/baskets/Open?timeout=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert one.end() == 0
            assert waiting.makefile("rb").readline().startswith(b"HTTP/1.1 202")


@pytest.mark.faults
def test_without_a_server_callers_are_answered_in_time_and_commands_are_decided_once_when_it_is_back(
    tmp_path: Path,
) -> None:
    data = tmp_path / ".leftfold"
    with embedded(data) as own:
        servers = Addresses(own.kafka, own.redis)
        with (
            serving(Shell(tmp_path).at(servers), *APP),
            gateways(tmp_path, servers, 2, HASTY) as (one, fresh),
            httpx.Client(base_url=one.url, timeout=PATIENT) as http,
        ):
            position = wait_decided(http, "b-1")["position"]
            row = "/views/open_baskets/b-1"
            assert http.get(row, params={"after": position, "timeout": 30}).status_code == 200
            for how in ("killed", "paused"):
                with _without(data, "redis", how):
                    for path in (row, "/views/open_baskets", f"{row}?after={position}"):
                        _is_unavailable(http.get(path))
                    assert http.get("/health/ready").status_code == 503
                    assert http.get("/health/live").status_code == 200
                    wait_decided(http, f"without-redis-{how}")
                wait_until(lambda: http.get(row).status_code == 200, "reads")
                wait_until(lambda: http.get("/health/ready").status_code == 200, "readiness")
            with _without(data, "kafka", "killed"):
                unknown = open_basket(http, "b-2", params={"timeout": 1})
                assert unknown.status_code == 202, unknown.text
                _is_unavailable(http.get("/streams/baskets/b-1"))
                assert http.get(row).status_code == 200
                with httpx.Client(base_url=fresh.url, timeout=PATIENT) as other, ThreadPoolExecutor(20) as threads:
                    # It has sent nothing yet, and so has no connection: the attempts of all these are one.
                    answers = threads.map(lambda n: open_basket(other, f"c-{n}"), range(20))
                    assert other.get(row).status_code == 200
                    for answer in answers:
                        _is_unavailable(answer)
            wait_decided(http, "b-2")
            wait_until(lambda: http.get("/streams/baskets/b-2").status_code == 200, "the stream")
            events = http.get("/streams/baskets/b-2").json()["events"]
            assert [event["causation_id"] for event in events] == ["b-2"]


OTHERS = ("serve", "--host", "0.0.0.0")  # noqa: S104  # what is refused without credentials


def test_a_gateway_that_others_reach_is_refused_without_credentials_unless_that_is_meant(typed: Typing) -> None:
    """With `--insecure` it gets as far as its App, which is not there."""
    words = (*OTHERS, "--app", "nowhere:app")
    typed(*words).ended(2, "--host 0.0.0.0 can be reached by others", "--new-key NAME", "--insecure")
    typed(*words, "--insecure").ended(78, "there is no module nowhere")


def test_a_gateway_that_others_reach_begins_with_keys(tmp_path: Path, started: Callable[..., Any]) -> None:
    environment, port = {"LEFTFOLD_HTTP_KEYS": f"shop={hash_of('secret')}"}, free_port()
    shell = Shell(tmp_path, environment).at(Addresses("127.0.0.1:1", "redis://127.0.0.1:1"))
    process = started(shell, [*OTHERS, *APP, "--port", str(port)])
    wait_until(lambda: listens(port), shell.said, WAIT_SECONDS, lambda: process.poll() is None)
    status = httpx.get(f"http://127.0.0.1:{port}/views/open_baskets/b", timeout=PATIENT).status_code
    assert status == 401, shell.said()


def _far_behind(position: Position) -> Position:
    """A place that no event will ever be at, in the same partition."""
    ((topic, partitions),) = json.loads(position.to_json()).items()
    return Position.from_json(json.dumps({topic: {n: offset + 10**9 for n, offset in partitions.items()}}))


def _is_unavailable(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json"), answer.text
    assert answer.headers["Retry-After"] == "1"


@contextmanager
def _without(data: Path, name: str, how: str) -> Iterator[None]:
    """A server that is killed and started again, or that stands still, while the block runs."""
    if how == "killed":
        kill(data, name)
        yield
        restart(data, name)
        return
    pid = int(json.loads((data / "servers.json").read_text("utf-8"))["pids"][name])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
