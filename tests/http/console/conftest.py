"""A kiosk on servers with some of everything in it, its console, and a browser."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from leftfold import connect, memory
from leftfold.engine.processing.command_wire import command_headers, command_id
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.memory import World
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import utc_text
from leftfold.ports.outgoing import Outgoing
from tests.cli.shell import Shell, serving
from tests.free_ports import free_port, listens
from tests.http.console.browser import Window, chromium
from tests.http.console.kiosk import NOW, Pay, Place, app
from tests.servers import Addresses, patient
from tests.waiting import wait_until

SPEC = "tests.http.console.kiosk:app"


@dataclass
class Kiosk:
    """The running kiosk: its servers, and the console as a process that can be started again."""

    servers: Addresses
    shell: Shell
    port: int
    process: subprocess.Popen[bytes]

    def restart(self) -> None:
        """Ends the console and starts another one at the same port."""
        self.process.terminate()
        self.process.wait(60.0)
        self.process = start_console(self.shell, self.port)


def start_console(shell: Shell, port: int) -> subprocess.Popen[bytes]:
    """Starts a console whose visitors may act."""
    process = shell.start(["console", "--app", SPEC, "--allow-acts", "--port", str(port)])
    shell.wait_until(process, lambda said: f":{port}" in said)
    wait_until(partial(listens, port), "the console to listen", running=lambda: process.poll() is None)
    return process


@pytest.fixture(scope="module")
def kiosk(tmp_path_factory: pytest.TempPathFactory, servers: Addresses) -> Iterator[Kiosk]:
    place = tmp_path_factory.mktemp("kiosk")
    metrics = f"127.0.0.1:{free_port()}"
    with serving(Shell(place).at(servers), "--app", SPEC, "--json-logs", "--metrics", metrics):
        fill(servers)
        shell = Shell(tmp_path_factory.mktemp("console"), {"LEFTFOLD_METRICS": metrics}).at(servers)
        port = free_port()
        found = Kiosk(servers, shell, port, start_console(shell, port))
        try:
            yield found
        finally:
            found.process.terminate()
            found.process.wait(60.0)


def fill(servers: Addresses) -> None:
    """Orders of a month, two that no view can fold, one whose receipt cannot be posted, and one dead letter."""
    now = datetime.now(UTC)
    placed = [
        Place(order=f"o-{n}", customer=f"c-{n % 4}", product="tea", price=Decimal(n + 1), at=now - timedelta(days=n))
        for n in range(24)
    ]
    placed += [Place(order=f"o-odd{n}", customer="c-1", product="odd", price=Decimal(3), at=now) for n in ("", "-2")]
    placed.append(Place(order="o-nobox", customer="nobox", product="tea", price=Decimal(3), at=now))
    placed.append(Place(order="o-1", customer="c-1", product="newspaper", price=Decimal("2.50"), at=now))
    paid = [Pay(order=order) for order in ("o-0", "o-1", "o-2", "o-nobox")]
    with connect(app, kafka=patient(servers.kafka), redis=servers.redis) as leftfold:
        receipts = leftfold.client.send_many([*placed, *paid])
        assert not [one for one in receipts if isinstance(one, Exception)]
    key, id_ = b"o-dead", command_id()
    command = Place(order="o-dead", customer="c-2", product="milk", price=Decimal(2), at=now)
    headers = command_headers(
        command, id=id_, source="shop", at=utc_text(now).encode(), type_=b"orders.Place.v1", expected_version=None,
        reply_to=b"",
    )  # fmt: skip
    body = command.model_dump_json().replace('"2"', '"two"').encode()
    out = Outgoing(partition_of(key, app.partitions), key, body, [one for one in headers if one[0] != "reply_to"])
    write_record(patient(servers.kafka), "orders.commands", out)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(chrome: Chrome, kiosk: Kiosk) -> Window:
    found = Window(chrome, f"http://127.0.0.1:{kiosk.port}")
    chrome.get("about:blank")
    found.errors(), found.foreign_hosts()
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that draws the pictures of the pages again."""
    parser.addoption("--pictures", type=Path, default=None, help="write pictures of the console into this directory")


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=NOW, acts={}) as made:
        for n, product in enumerate(("tea", "milk", "newspaper")):
            made.client.send(Place(order="o-1", customer="c-1", product=product, price=Decimal(n + 4), at=NOW))
        made.client.send(Pay(order="o-1"))
        made.client.send(Place(order="o-2/3", customer="c <b>2</b>", product="tea", price=Decimal(1), at=NOW))
        made.client.send(Pay(order="o-2/3"))
        yield made


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey stays fresh, however long the machine stands still."""
    monkeypatch.setattr("leftfold.http.console.console_state._PAUSE", 3600.0)
