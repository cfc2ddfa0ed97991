"""Watching rows from the shell, on real servers."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.cli.shell import Shell, serving

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
TEA = '{"cart_id": "c-1", "product_id": "tea", "quantity": 2, "price": "3.20"}'


@pytest.fixture(scope="module")
def at_work(up: Shell) -> Iterator[Shell]:
    """The project while `leftfold run` runs, with one cart."""
    with serving(up):
        sent = up("send", "AddItem", TEA, "--timeout", "30")
        assert sent.code == 0, sent.err
        position = sent.out.rsplit("position ", 1)[1].strip()
        assert up("get", "cart_summary", "c-1", "--after", position, "--timeout", "30").code == 0
        yield up


def test_watching_shows_rows_as_they_change_and_says_how_to_go_on(at_work: Shell, wait_until: Wait) -> None:
    other = Shell(at_work.place)
    other.log = at_work.place / "watch.log"
    start = json.dumps(at_work("get", "cart_summary", "c-1", "--json").rows()[0]["position"])
    watching = other.start(["watch", "cart_summary", "--after", start])
    assert at_work("send", "AddItem", TEA.replace("c-1", "c-20")).code == 0
    wait_until(lambda: "c-20" in other.said(), "the changed row")
    assert "v1" in other.said()
    assert "total=6.40" in other.said()
    watching.send_signal(signal.SIGINT)
    assert watching.wait(240.0) == 130
    after = other.said().rsplit("to go on from here: ", 1)[1]
    assert at_work("send", "AddItem", TEA.replace("c-1", "c-21")).code == 0
    again = at_work(*shlex.split(after)[1:], "--json", "--limit", "1")
    assert [(row["key"], row["row"]["total"], row["version"]) for row in again.rows()] == [("c-21", "6.40", 1)]


def test_one_row_is_watched_from_before_it_is_there(at_work: Shell, wait_until: Wait) -> None:
    other = Shell(at_work.place)
    other.log = at_work.place / "row.log"
    watching = other.start(["get", "cart_summary", "c-30", "--watch", "--json"])
    wait_until(lambda: '"row":null' in other.said(), "the first answer")
    at_work("send", "AddItem", TEA.replace("c-1", "c-31"))
    at_work("send", "AddItem", TEA.replace("c-1", "c-30"))
    wait_until(lambda: "6.40" in other.said(), "the row")
    at_work("send", "AddItem", TEA.replace("c-1", "c-30"))
    wait_until(lambda: "12.80" in other.said(), "its change")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(240.0) == 130
    rows = [json.loads(line) for line in other.said().splitlines()]
    assert [(row["key"], row.get("version")) for row in rows] == [("c-30", None), ("c-30", 1), ("c-30", 2)]


def test_a_watch_of_what_is_not_there_is_refused(at_work: Shell) -> None:
    assert "did you mean cart_summary?" in at_work("watch", "cart_sumary").err
    nothing = at_work("watch", "cart_summary", "c-404", "--timeout", "0.2")
    assert (nothing.code, nothing.out) == (0, "")
