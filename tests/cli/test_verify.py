"""`leftfold verify` finds what somebody did to Redis beside the framework, while the service goes on."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

import pytest
from redis import Redis

from leftfold.model.rows import ordered
from tests.cli.shell import Shell, serving

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
ADD = '{{"cart_id": "{}", "product_id": "tea", "quantity": 1, "price": "2.50"}}'
OUT = '{{"cart_id": "{}", "customer_id": "{}"}}'
TWIN = "the twin: no bucket's checksum is wrong, so nothing was ever looked at"
COUNT = """
from decimal import Decimal
from leftfold.runtime.connect import connect
from shop.projections.customer_spend import customer_spend
from shop.services.carts.app import app
with connect(app) as lf:
    print(lf.views[customer_spend].count(total=Decimal("77.00")))
"""


class Damage:
    """A Redis client in the wrong hands; what it changed is put back."""

    def __init__(self, shell: Shell) -> None:
        url = json.loads((shell.place / ".leftfold" / "servers.json").read_text("utf-8"))["redis"]
        self._redis: Any = Redis.from_url(url)

    def key(self, pattern: str) -> bytes:
        """The one key that is called so."""
        (found,) = self._redis.keys(pattern)
        return bytes(found)

    def keys(self, pattern: str) -> list[bytes]:
        """The keys that are called so."""
        return sorted(self._redis.keys(pattern))

    @contextmanager
    def done(self, *commands: tuple[str, bytes, *tuple[str | bytes, ...]]) -> Iterator[None]:
        """These commands, and the opposite when the block ends."""
        before = {key: self._redis.dump(key) for _, key, *_ in commands}
        for command in commands:
            assert self._redis.execute_command(*command) >= 0
        yield
        for key, dump in before.items():
            self._redis.delete(key)
            if dump is not None:
                self._redis.restore(key, 0, dump)

    def close(self) -> None:
        """Lets go of the connection."""
        self._redis.close()


@pytest.fixture(scope="module")
def at_work(up: Shell) -> Iterator[Shell]:
    """The project while `leftfold run` runs, with four carts of which three are ordered."""
    with serving(up):
        for cart in ("a", "b", "c", "d"):
            sent = up("send", "AddItem", ADD.format(cart), "--timeout", "60")
            assert sent.code == 0, sent.err
        for cart, customer in (("a", "ann"), ("b", "bob"), ("c", "cat")):
            sent = up("send", "CheckOut", OUT.format(cart, customer))
            position = sent.out.rsplit("position ", 1)[1].strip()
            for view, key in (("cart_summary", cart), ("customer_spend", customer)):
                assert up("get", view, key, "--after", position, "--timeout", "30").code == 0
        yield up


@pytest.fixture
def damage(at_work: Shell) -> Iterator[Damage]:
    """A client of the project's Redis."""
    with closing(Damage(at_work)) as damage:
        yield damage


def plain(shell: Shell, view: str) -> tuple[int, bool]:
    """What a verification of the checksums alone comes to."""
    told = shell("verify", view, "--json")
    return told.code, told.rows()[0]["equal"]


def deep(shell: Shell, view: str, *words: str) -> dict[str, Any]:
    """What a deep one tells, which finds something, and no bucket wrong."""
    told = shell("verify", view, "--deep", "--json", *words)
    assert told.code == 3, told.out + told.err
    (row,) = told.rows()
    assert (row["equal"], row["wrong"], row["stored"]) == (False, [], row["folded"]), TWIN
    return row


def test_a_changed_field_is_found_by_comparing_rows_only(at_work: Shell, damage: Damage) -> None:
    with damage.done(("HSET", damage.key("v:{cart_summary:*}:a"), "items", "99")):
        assert plain(at_work, "cart_summary") == (0, True), "the twin"
        (row,) = deep(at_work, "cart_summary")["rows"]
        assert (row["key"], row["one"]["items"], row["other"]["items"]) == ("a", "99", "1")
        shown = at_work("verify", "cart_summary", "--deep").out
        assert "checkpoints equal, 1 row stored otherwise" in shown
        assert "stored  99" in shown
    whole = at_work("verify", "--deep")
    assert (whole.code, whole.out.count("rows and indexes equal")) == (0, 2), whole.out + whole.err


def test_a_deleted_row_is_found(at_work: Shell, damage: Damage) -> None:
    with damage.done(("DEL", damage.key("v:{cart_summary:*}:b"))):
        assert plain(at_work, "cart_summary") == (0, True), "the twin"
        (row,) = deep(at_work, "cart_summary")["rows"]
        assert (row["key"], row["one"], row["other"]["items"]) == ("b", None, "1")


def test_a_stale_index_entry_is_found(at_work: Shell, damage: Damage) -> None:
    index = next(key for key in damage.keys("v:{customer_spend:*}#total"))
    stale = f"{ordered(Decimal('77.00'))}\0zoe"
    with damage.done(("ZADD", index, "0", stale)):
        assert at_work.python("-c", COUNT).out.strip() == "1", "readers are told of a row that is not there"
        assert plain(at_work, "customer_spend") == (0, True), "the twin"
        (row,) = deep(at_work, "customer_spend")["rows"]
        assert (row["key"], set(row["one"]), row["other"]) == ("zoe", {"#total"}, None)


def test_a_row_missing_in_its_index_and_in_the_key_list_is_found(at_work: Shell, damage: Damage) -> None:
    row = damage.key("v:{customer_spend:*}:ann")
    bucket = row.removesuffix(b":ann")
    with damage.done(("DEL", bucket + b"#total"), ("ZREM", bucket + b"#", "ann")):
        assert plain(at_work, "customer_spend") == (0, True), "the twin"
        found = {row["key"]: row for row in deep(at_work, "customer_spend")["rows"]}
        assert found["ann"]["other"].keys() - found["ann"]["one"].keys() == {"#", "#total"}


def test_a_row_in_a_bucket_that_no_event_belongs_to_is_found(at_work: Shell, damage: Damage) -> None:
    checkpoints, used = damage.keys("v:{customer_spend:*}@"), damage.keys("v:{customer_spend:*}#")
    bucket = next(checkpoint[:-1] for checkpoint in checkpoints if checkpoint[:-1] + b"#" not in used)
    commands = (("HSET", bucket + b":eve", "orders", "1"), ("ZADD", bucket + b"#", "0", "eve"))
    with damage.done(*commands):
        assert plain(at_work, "customer_spend") == (0, True), "the twin"
        (row,) = deep(at_work, "customer_spend")["rows"]
        assert (row["key"], row["other"]) == ("eve", None)


def test_a_wrong_checksum_is_found_without_reading_rows(at_work: Shell, damage: Damage) -> None:
    checkpoint = damage.key("v:{customer_spend:*}:bob").removesuffix(b":bob") + b"@"
    with damage.done(("HSET", checkpoint, "checksum", "0" * 32)):
        assert plain(at_work, "customer_spend") == (3, False)
        told = at_work("verify", "customer_spend", "--deep")
        assert (told.code, "differs in 1 bucket, no row differs" in told.out) == (3, True), told.out + told.err
        assert plain(at_work, "cart_summary") == (0, True)


def test_rows_that_are_written_meanwhile_are_no_differences_and_hide_none(at_work: Shell, damage: Damage) -> None:
    stop, sent = threading.Event(), list[int]()

    def write() -> None:
        while not stop.is_set():
            sent.append(at_work("send", "AddItem", ADD.format(f"w{len(sent) % 3}")).code)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            told = at_work("verify", "cart_summary", "--deep")
            assert told.code == 0, told.out + told.err
        with damage.done(("HSET", damage.key("v:{cart_summary:*}:d"), "total", "0.01")):
            assert [row["key"] for row in deep(at_work, "cart_summary")["rows"]] == ["d"]
    finally:
        stop.set()
        writer.join()
    assert sent
    assert set(sent) == {0}


def test_any_generation_can_be_verified_by_its_id(at_work: Shell, damage: Damage) -> None:
    before = at_work("verify", "cart_summary", "--json").rows()[0]["generation"]
    built = at_work("rebuild", "cart_summary", "--engine", "local", "--json").rows()[0]["generation"]
    with damage.done(("HSET", damage.key(f"v:{{cart_summary:{before}:*}}:d"), "items", "7")):
        told = deep(at_work, "cart_summary", "--generation", before)
        assert (told["generation"], [row["key"] for row in told["rows"]]) == (before, ["d"])
        assert at_work("verify", "cart_summary", "--deep", "--generation", built).code == 0
        assert at_work("verify", "cart_summary", "--deep").code == 0
    missing = at_work("verify", "cart_summary", "--generation", "9-none")
    assert "no generation '9-none'; it has" in missing.err
    assert built in missing.err


def test_a_continuous_verification_tells_what_it_finds_until_it_is_interrupted(
    at_work: Shell, damage: Damage, wait_until: Wait
) -> None:
    other = Shell(at_work.place)
    other.log = at_work.place / "continuous.log"
    verifying = other.start(["verify", "--continuous", "--deep", "--share", "50%", "--json"])
    try:
        wait_until(lambda: other.said().count('"equal":true') >= 4, "each view to be found equal twice")
        assert '"equal":false' not in other.said()
        with damage.done(("HSET", damage.key("v:{customer_spend:*}:cat"), "orders", "5")):
            wait_until(lambda: '"equal":false' in other.said(), "the changed row to be found")
        assert verifying.poll() is None, "it goes on"
        verifying.send_signal(signal.SIGINT)
        assert verifying.wait(240.0) == 130
    finally:
        verifying.kill()
        verifying.wait(240.0)
    told = [json.loads(line) for line in other.said().splitlines() if line.startswith("{")]
    wrong = next(row for row in told if not row["equal"])
    assert (wrong["view"], [row["key"] for row in wrong["rows"]]) == ("customer_spend", ["cat"])
