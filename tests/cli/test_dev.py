"""`leftfold dev`: its own servers, a restart for every change, and nothing left behind."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from tests.cli.shell import Shell
from tests.free_ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.slow]

Wait = Callable[[Callable[[], object], str], None]


PORT = free_port()
ADD = {"cart_id": "c", "at": "2026-01-01T00:00:00Z", "product_id": "tea", "quantity": 1, "price": "1"}


@pytest.fixture
def dev(shop: Shell, wait_until: Wait) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold dev` once everything works."""
    process = shop.start(["dev", "--plain-logs", f"--port={PORT}"])
    try:
        wait_until(lambda: " serving " in shop.said() and " following " in shop.said(), "the App at work")
        yield process
    finally:
        process.terminate()
        process.wait(240.0)


def answers(http: httpx.Client, path: str) -> bool:
    """Whether the gateway answers well."""
    try:
        return http.get(path).status_code == 200
    except httpx.TransportError:
        return False


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """All descendants; the servers are among them."""
    return psutil.Process(process.pid).children(recursive=True)


def test_a_change_starts_the_app_again_and_ctrl_c_stops_servers_and_app(
    shop: Shell, dev: subprocess.Popen[bytes], wait_until: Wait
) -> None:
    assert any("java" in process.name() for process in family(dev))
    assert [line for line in shop.said().splitlines() if not re.match(r"\d\d:\d\d:\d\d ", line)] == []
    file = shop.place / "shop" / "services" / "carts" / "domain.py"
    before = file.read_text("utf-8")
    file.write_text(before + "\nx = (\n", "utf-8")
    wait_until(lambda: "'(' was never closed" in shop.said(), "the slip to be noticed")
    wait_until(lambda: "waiting for a change" in shop.said(), "its end")
    file.write_text(before, "utf-8")
    wait_until(lambda: shop.said().count(" serving ") == 2, "the App at work again")
    assert "changed=shop/services/carts/domain.py" in shop.said()
    with httpx.Client(base_url=f"http://127.0.0.1:{PORT}") as http:
        wait_until(lambda: answers(http, "/health/ready"), "the gateway")
        assert http.post("/commands/carts/AddItem", json=ADD).status_code == 200
        assert "Overview" in http.get("/console/").text
    everything = family(dev)
    password = (shop.place / ".leftfold" / "redis" / "password").read_text("utf-8").strip()
    told = [shop.said(), *(" ".join(process.cmdline()) for process in everything)]
    assert password
    assert [line for line in told if password in line] == []
    dev.send_signal(signal.SIGINT)
    assert dev.wait(240.0) == 130
    assert psutil.wait_procs(everything, timeout=240.0)[1] == []
    assert shop("status").code == 69


def test_killed_it_leaves_nothing_behind(shop: Shell, dev: subprocess.Popen[bytes]) -> None:
    everything = family(dev)
    dev.kill()
    dev.wait()
    assert psutil.wait_procs(everything, timeout=240.0)[1] == []
