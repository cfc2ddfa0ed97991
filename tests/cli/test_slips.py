"""What a tired person types: the answer names what is wrong and what to type, before anything slow begins."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.shell import Shell, Typed


def test_a_command_without_fields_shows_what_they_look_like(shop: Shell) -> None:
    for words in (("send", "AddItem"), ("send", "AddItem", "-")):
        told = shop(*words)
        assert (told.code, told.out) == (2, "")
        assert 'AddItem needs its fields: leftfold send AddItem \'{"cart_id": ' in told.err


@pytest.mark.parametrize("words", [("rebuild",), ("verify", "--engine", "spark"), ("rebuild", "--sample", "1%")])
def test_without_servers_spark_is_not_even_started(shop: Shell, words: tuple[str, ...]) -> None:
    told = shop(*words)
    assert told.code == 78
    assert told.err.startswith("error: no Kafka address: start servers with `leftfold up`")


def test_an_event_that_is_gone_is_never_accepted_and_the_mend_is_told(shop: Shell) -> None:
    """As after the carts of `leftfold new` made room for something of one's own."""
    lock = shop.place / "leftfold.lock"
    written = lock.read_text("utf-8")
    released = json.loads(written)
    released["events"]["carts.CartStolen.v1"] = released["events"]["carts.CartCheckedOut.v1"]
    released["views"]["thefts"] = released["views"]["cart_summary"]
    lock.write_text(json.dumps(released), "utf-8")
    try:
        accepted, after = shop("check", "--write"), shop("check")
    finally:
        lock.write_text(written, "utf-8")
    assert "accepted view thefts: is removed\n" in accepted.out
    for told in (accepted, after):
        assert told.code == 1
        assert "error event carts.CartStolen.v1: was released and no class reads it any more" in told.out
        assert "if it never reached a log, delete it from leftfold.lock" in told.out
    assert "thefts" not in after.out


@pytest.mark.servers
@pytest.mark.parametrize("words", [("verify",), ("explain", "cart_summary", "c"), ("retry", "cart_summary")])
def test_without_a_broker_nobody_waits_a_minute(served: Shell, words: tuple[str, ...]) -> None:
    told = served(*words, "--kafka", "127.0.0.1:1")
    assert (told.code, told.out) == (69, "")
    assert told.err.startswith("error: no broker at 127.0.0.1:1: nothing listens")


@pytest.fixture(scope="module")
def built(served: Shell) -> Shell:
    """The project with its topics and both views, and with nothing at work."""
    assert served("topics", "ensure").code == 0
    made = served("rebuild", "--engine", "local")
    assert made.code == 0, made.err
    return served


@pytest.mark.servers
@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("carts.events[0:7]", "is beyond the end of carts.events[0], which is 0"),
        ('{"carts.events": {"9": 1}}', "carts.events has no partition 9; it has 4, the first is 0"),
        ("cars.events[0:0]", "there is no topic in the log called 'cars.events'; did you mean carts.events?"),
        ("carts.commands[0:0]", "names nothing that view cart_summary reads, which is carts.events"),
    ],
)
def test_a_slip_in_a_position_builds_no_view_of_something_else(built: Shell, place: str, why: str) -> None:
    told = built("rebuild", "cart_summary", "--engine", "local", "--as-of", place, "--name", "slip")
    assert told.code == 2, told.out
    assert why in told.err
    assert built("get", "cart_summary@slip", "c").code == 1


@pytest.mark.servers
def test_a_time_that_has_not_come_is_said_to_mean_now(built: Shell) -> None:
    told = built("rebuild", "cart_summary", "--engine", "local", "--as-of", "2100-01-01", "--name", "then")
    assert told.code == 0, told.err
    assert "2100-01-01 has not come yet: that is everything up to now" in told.err
    assert "pinned: @then" in built("status").out, "the name is what it is read and dropped by"


@pytest.mark.servers
def test_a_generation_that_is_not_there_comes_with_how_to_make_one(built: Shell) -> None:
    held, kept = built("promote", "customer_spend"), built("rollback", "customer_spend")
    assert held.err.rstrip().endswith("(live); make one: leftfold rebuild customer_spend --hold")
    assert kept.err.rstrip().endswith("there is one after a rebuild or a promote, for as long as --keep says")


def test_ctrl_c_before_the_command_has_begun_is_quiet(
    typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(app: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    told = typed("status")
    assert (told.code, told.out, told.err) == (130, "", "")


@pytest.mark.parametrize(("behind", "code"), [(KeyboardInterrupt(), 130), (ValueError(), 1)], ids=["", "twin"])
def test_ctrl_c_within_c_code_is_told_as_such(
    behind: BaseException, code: int, typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(app: object) -> None:
        raise SystemError("<class 'Some'> returned a result with an exception set") from behind

    monkeypatch.setattr("typer.main.get_command", interrupted)
    assert typed("status").code == code


def test_doctor_names_all_that_is_not_installed_at_once(shop: Shell) -> None:
    script = """
import sys
from leftfold.cli.main import run

sys.modules["confluent_kafka"] = sys.modules["hiredis"] = None
run(["doctor"])
"""
    told = shop.python("-c", script)
    assert "not installed: kafka,redis; install it: pip install 'leftfold[kafka,redis]'" in told.err


def test_doctor_says_what_a_missing_spark_means(shop: Shell) -> None:
    script = """
import sys
from leftfold.cli.main import run

import importlib.util
whole = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "pyspark" else whole(name)
run(["doctor"])
"""
    told = shop.python("-c", script)
    assert "without spark (rebuilds run in one process, query views cannot be computed)" in told.out
