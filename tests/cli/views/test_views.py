"""An operator looks after views: slips, places of the log, and what was done to Redis beside the framework."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import Any

import pytest
from redis import Redis

from leftfold.model.row_codec import ordered
from tests.cli.shell import Shell, serving

pytestmark = pytest.mark.servers

ADD = '{{"cart_id": "{}", "product_id": "{}", "quantity": {}, "price": "{}"}}'
OUT = '{{"cart_id": "{}", "customer_id": "{}"}}'
TWIN = "the twin: no bucket's checksum is wrong, so nothing was ever looked at"
VIEWS = ("cart_summary", "customer_spend")


@pytest.fixture(scope="module")
def built(served: Shell) -> Shell:
    """The project with its topics and both views, and with nothing at work."""
    assert served("topics", "ensure").code == 0
    served("rebuild", "--engine", "local").ok()
    return served


@pytest.fixture(scope="module")
def place(built: Shell) -> Iterator[str]:
    """The project at work, with four carts of which three are ordered; where the log stood when a was at version 2."""
    with serving(built):
        lines = [
            ADD.format("a", "tea", 1, "1.00"),
            ADD.format("a", "pot", 2, "5.00"),
            ADD.format("a", "jam", 1, "2.50"),
        ]
        sent = [built("send", "AddItem", line, "--timeout", "60") for line in lines]
        sent += [built("send", "AddItem", ADD.format(cart, "tea", 1, "2.50")) for cart in "bcd"]
        ordered_by = {"b": "bob", "c": "cat", "d": "ann"}
        sent += [built("send", "CheckOut", OUT.format(*one)) for one in ordered_by.items()]
        positions = [one.out.rsplit("position ", 1)[1].strip() for one in sent]
        for cart, position in zip(ordered_by, positions[-3:], strict=True):
            for view, key in zip(VIEWS, (cart, ordered_by[cart]), strict=True):
                assert built("get", view, key, "--after", position, "--timeout", "60").code == 0
        yield positions[1]


class Damage:
    """A Redis client in the wrong hands; what it changed is put back."""

    def __init__(self, shell: Shell) -> None:
        self._redis: Any = Redis.from_url(shell._environment["LEFTFOLD_REDIS_URL"])

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
        try:
            for command in commands:
                assert self._redis.execute_command(*command) >= 0
            yield
        finally:
            for key, dump in before.items():
                self._redis.delete(key)
                if dump is not None:
                    self._redis.restore(key, 0, dump)

    def close(self) -> None:
        """Closes the connection."""
        self._redis.close()


@pytest.fixture
def damage(built: Shell, place: str) -> Iterator[Damage]:
    """A client of the project's Redis."""
    with closing(Damage(built)) as damage:
        yield damage


@pytest.mark.parametrize("words", ["verify", "explain cart_summary c", "retry cart_summary"])
def test_without_a_broker_no_command_waits_a_minute(served: Shell, words: str) -> None:
    hasty = Shell(served.place, served._environment | {"LEFTFOLD_KAFKA_REQUEST_TIMEOUT": "0.05"})
    result = hasty(*words.split(), "--kafka", "127.0.0.1:1")
    assert (result.code, result.out) == (69, "")
    assert result.err.startswith("error: no broker at 127.0.0.1:1: nothing listens")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("carts.events[0:7]", "is beyond the end of carts.events[0], which is 0"),
        ('{"carts.events": {"9": 1}}', "carts.events has no partition 9; it has 4, the first is 0"),
        ("cars.events[0:0]", "there is no topic in the log called 'cars.events'; did you mean carts.events?"),
        ("carts.commands[0:0]", "names nothing that view cart_summary reads, which is carts.events"),
        ("no such@3", "there is no version 3 of no such in carts; see: leftfold events carts 'no such'\n"),
    ],
)
def test_a_slip_in_a_position_builds_no_view_of_something_else(built: Shell, where: str, why: str) -> None:
    built("rebuild", "cart_summary", "--engine", "local", "--as-of", where, "--name", "slip").ended(2, why)
    assert built("get", "cart_summary@slip", "c").code == 1


def test_a_time_that_has_not_come_is_said_to_mean_now_and_a_generation_that_is_not_there_how_to_make_one(
    built: Shell,
) -> None:
    result = built("rebuild", "cart_summary", "--engine", "local", "--as-of", "2100-01-01", "--name", "then").ok()
    assert "2100-01-01 has not come yet: that is everything up to now" in result.err
    assert "pinned: @then" in built("status").out, "the name is what it is read and dropped by"
    held, kept = built("promote", "customer_spend"), built("rollback", "customer_spend")
    assert held.err.rstrip().endswith("(live); make one: leftfold rebuild customer_spend --hold")
    assert kept.err.rstrip().endswith("there is one after a rebuild or a promote, for as long as --keep says")


def test_explain_shows_each_event_and_what_it_changed(built: Shell, place: str) -> None:
    result = built("explain", "cart_summary", "a").ok()
    assert "items: 1 -> 3" in result.out
    assert "total: 11.00 -> 13.50" in result.out
    assert "this is the row that is stored, at carts.events[" in result.err
    steps = built("explain", "cart_summary", "a", "--json").rows()
    assert [step["after"]["items"] for step in steps] == [1, 3, 4]
    assert steps[0]["before"] is None


def test_a_view_as_of_a_position_is_read_like_any_other(built: Shell, place: str) -> None:
    built("rebuild", "cart_summary", "--engine", "local", "--as-of", place, "--name", "then_a").ok()
    row = built("get", "cart_summary@then_a", "a", "--json").rows()[0]["row"]
    assert (row["items"], row["total"]) == (3, "11.00")
    assert built("get", "cart_summary@then_a", "c").code == 1, "that cart came later"
    assert [s["after"]["items"] for s in built("explain", "cart_summary@then_a", "a", "--json").rows()] == [1, 3]
    refused = built("rebuild", "cart_summary", "--engine", "local", "--as-of", "2000-01-01", "--name", "dawn")
    assert refused.code == 2, "there was nothing yet"
    assert "nothing of carts was appended before that, so the view will be empty" in refused.err
    assert "dawn" not in built("status").out


def deep(shell: Shell, *words: str) -> list[dict[str, Any]]:
    """What a deep verification finds of each view, which is something, and no bucket wrong."""
    result = shell("verify", *words, "--deep", "--json")
    assert result.code == 3, result.out + result.err
    for row in result.rows():
        assert (row["equal"], row["wrong"], row["stored"]) == (False, [], row["folded"]), TWIN
    return result.rows()


def test_what_was_done_to_rows_and_indexes_is_found_by_comparing_rows_only(built: Shell, damage: Damage) -> None:
    checkpoints, used = damage.keys("v:{customer_spend:*}@"), damage.keys("v:{customer_spend:*}#")
    empty = next(checkpoint[:-1] for checkpoint in checkpoints if checkpoint[:-1] + b"#" not in used)
    ann, cat = (damage.key(f"v:{{customer_spend:*}}:{who}").removesuffix(f":{who}".encode()) for who in ("ann", "cat"))
    live = built("verify", "cart_summary", "--json").rows()[0]["generation"]
    commands: list[tuple[str, bytes, *tuple[str | bytes, ...]]] = [
        ("HSET", damage.key(f"v:{{cart_summary:{live}:*}}:a"), "items", "99"),
        ("DEL", damage.key(f"v:{{cart_summary:{live}:*}}:b")),
        ("ZADD", cat + b"#total", "0", f"{ordered(Decimal('77.00'))}\0zoe"),
        ("ZREM", ann + b"#total", f"{ordered(Decimal('2.50'))}\0ann"),
        ("ZREM", ann + b"#", "ann"),
        ("HSET", empty + b":eve", "orders", "1"),
        ("ZADD", empty + b"#", "0", "eve"),
    ]
    with damage.done(*commands):
        plain = built("verify", "--json")
        assert (plain.code, [row["equal"] for row in plain.rows()]) == (0, [True, True]), "the twin"
        carts, spent = ({row["key"]: row for row in view["rows"]} for view in deep(built))
        shown = built("verify", "cart_summary", "--deep").out
    assert (carts["a"]["one"]["items"], carts["a"]["other"]["items"]) == ("99", "4")
    assert (carts["b"]["one"], carts["b"]["other"]["items"]) == (None, "1")
    assert (set(spent["zoe"]["one"]), spent["zoe"]["other"]) == ({"#total"}, None)
    assert spent["ann"]["other"].keys() - spent["ann"]["one"].keys() == {"#", "#total"}
    assert (spent["eve"]["other"], len(carts), len(spent)) == (None, 2, 3)
    assert "checkpoints equal, 2 rows stored otherwise" in shown
    assert "stored  99" in shown
    whole = built("verify", "--deep")
    assert (whole.code, whole.out.count("rows and indexes equal")) == (0, 2), whole.out + whole.err
    assert "equal, checksum" in whole.out


def test_a_wrong_checksum_is_found_without_reading_rows(built: Shell, damage: Damage) -> None:
    checkpoint = damage.key("v:{customer_spend:*}:bob").removesuffix(b":bob") + b"@"
    with damage.done(("HSET", checkpoint, "checksum", "0" * 32)):
        plain = built("verify", "--json")
        assert (plain.code, [row["equal"] for row in plain.rows()]) == (3, [True, False])
        result = built("verify", "customer_spend", "--deep")
        assert (result.code, "differs in 1 bucket, no row differs" in result.out) == (3, True), result.out + result.err


def test_any_generation_can_be_verified_by_its_id(built: Shell, damage: Damage) -> None:
    before = built("verify", "cart_summary", "--json").rows()[0]["generation"]
    after = built("rebuild", "cart_summary", "--engine", "local", "--json").rows()[0]["generation"]
    with damage.done(("HSET", damage.key(f"v:{{cart_summary:{before}:*}}:d"), "items", "7")):
        (result,) = deep(built, "cart_summary", "--generation", before)
        assert (result["generation"], [row["key"] for row in result["rows"]]) == (before, ["d"])
        assert built("verify", "cart_summary", "--deep", "--generation", after).code == 0
        assert built("verify", "cart_summary", "--deep").code == 0
    missing = built("verify", "cart_summary", "--generation", "9-none")
    assert "no generation '9-none'; it has" in missing.err
    assert after in missing.err


def test_a_continuous_verification_reports_what_it_finds_until_it_is_interrupted(
    built: Shell, damage: Damage, started: Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
) -> None:
    other = built.beside("continuous")
    verifying = started(other, ["verify", "--continuous", "--deep", "--share", "50%", "--json"])
    other.wait_until(verifying, lambda said: said.count('"equal":true') >= 4)  # each view twice
    assert '"equal":false' not in other.said()
    with damage.done(("HSET", damage.key("v:{customer_spend:*}:cat"), "orders", "5")):
        other.wait_until(verifying, lambda said: '"equal":false' in said)
    verifying.send_signal(signal.SIGINT)
    assert verifying.wait(240.0) == 130
    result = [json.loads(line) for line in other.said().splitlines() if line.startswith("{")]
    wrong = next(row for row in result if not row["equal"])
    assert (wrong["view"], [row["key"] for row in wrong["rows"]]) == ("customer_spend", ["cat"])


def test_what_a_rebuild_and_a_swap_say_to_type_reaches_the_redis_that_an_option_named(built: Shell) -> None:
    url = built._environment["LEFTFOLD_REDIS_URL"].replace("127.0.0.1", "localhost")
    for words in ("rebuild cart_summary --engine local", "rollback cart_summary"):
        result = built(*words.split(), "--redis", url).ok()
        assert "leftfold rollback cart_summary" in result.out
        assert f"for these commands: export LEFTFOLD_REDIS_URL='redis://***@{url.partition('@')[2]}'\n" in result.err
