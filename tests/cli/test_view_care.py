"""An operator looks after the views of a running service: every command that reads or exchanges generations."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.cli.shell import Shell

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
ADD = '{{"cart_id": "{}", "product_id": "{}", "quantity": {}, "price": "{}"}}'
FOLD = "items=row.items + quantity, total"
SLIP = "items=row.items + quantity + 100, total"
POISON = """    if isinstance(event, ItemAdded) and event.product_id == "poison":
        raise ValueError("no poison please")
    row = row or CartSummary()"""


@pytest.fixture(scope="module")
def run(served: Shell) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run` in the project."""
    process = _run(served)
    yield process
    _end(process)


@pytest.fixture(scope="module")
def at_work(served: Shell, run: subprocess.Popen[bytes]) -> Shell:
    """The project while that runs."""
    return served


@pytest.fixture(scope="module")
def place(at_work: Shell) -> str:
    """Three carts are filled; where the log stood when the first of them was at version 2."""
    for _ in range(300):
        if at_work("send", "AddItem", ADD.format("a", "tea", 1, "1.00")).code == 0:
            break
    sent = at_work("send", "AddItem", ADD.format("a", "pot", 2, "5.00"))
    for cart, product in (("b", "tea"), ("c", "jam"), ("a", "jam")):
        assert at_work("send", "AddItem", ADD.format(cart, product, 1, "2.50")).code == 0
    return sent.out.rsplit("position ", 1)[1].strip()


def fold(shell: Shell, before: str, after: str) -> None:
    """Changes the fold of cart_summary."""
    file = shell.place / "shop" / "projections" / "cart_summary.py"
    text = file.read_text("utf-8")
    assert before in text
    file.write_text(text.replace(before, after), "utf-8")


def items(shell: Shell, view: str, cart: str) -> int:
    told = shell("get", view, cart, "--json")
    return int(told.rows()[0]["row"]["items"]) if told.code == 0 else -1


def doctor_on_views(shell: Shell) -> str:
    """What `leftfold doctor` says of the views."""
    (row,) = [row for row in shell("doctor", "--json").rows() if row["about"] == "views"]
    return str(row["message"])


def test_verify_finds_both_views_equal(at_work: Shell, place: str, wait_until: Wait) -> None:
    wait_until(lambda: items(at_work, "cart_summary", "a") == 4, "the tail")
    told = at_work("verify", "--json")
    assert (told.code, [row["equal"] for row in told.rows()]) == (0, [True, True]), told.err
    assert "equal, checksum" in at_work("verify", "cart_summary", "--deep").out


def test_explain_shows_each_event_and_what_it_changed(at_work: Shell, place: str) -> None:
    told = at_work("explain", "cart_summary", "a")
    assert told.code == 0, told.err
    assert "items: 1 -> 3" in told.out
    assert "total: 11.00 -> 13.50" in told.out
    assert "this is the row that is stored, at carts.events[" in told.err
    steps = at_work("explain", "cart_summary", "a", "--json").rows()
    assert [step["after"]["items"] for step in steps] == [1, 3, 4]
    assert steps[0]["before"] is None
    assert at_work("explain", "cart_summary", "nobody").code == 1


@pytest.mark.parametrize("as_of", ["position", "version"])
def test_a_view_as_of_a_place_is_read_like_any_other(at_work: Shell, place: str, as_of: str) -> None:
    where = place if as_of == "position" else "a@2"
    built = at_work("rebuild", "cart_summary", "--engine", "local", "--as-of", where, "--name", as_of)
    assert built.code == 0, built.err
    row = at_work("get", f"cart_summary@{as_of}", "a", "--json").rows()[0]["row"]
    assert (row["items"], row["total"]) == (3, "11.00")
    assert at_work("get", f"cart_summary@{as_of}", "c").code == 1, "that cart came later"
    assert [s["after"]["items"] for s in at_work("explain", f"cart_summary@{as_of}", "a", "--json").rows()] == [1, 3]


def test_a_view_as_of_a_time_is_found_by_the_log(at_work: Shell, place: str) -> None:
    words = ("rebuild", "cart_summary", "--engine", "local", "--as-of", "2000-01-01", "--name", "dawn")
    refused = at_work(*words)
    assert refused.code == 2, "there was nothing yet"
    assert "nothing of carts was appended before that, so the view will be empty" in refused.err
    assert "dawn" not in at_work("status").out
    built = at_work(*words, "--anyway")
    assert built.code == 0, built.err
    assert at_work("get", "cart_summary@dawn", "a").code == 1
    told = at_work("diff", "cart_summary", "--between", "dawn", "live", "--json")
    assert (told.code, told.rows()[0]["only_other"]) == (3, 3)


@pytest.mark.faults
def test_a_changed_fold_is_noticed_held_back_compared_and_promoted(
    at_work: Shell, place: str, wait_until: Wait
) -> None:
    """As docs/views.md has it typed, while a projector of the old code runs."""
    first = at_work("rebuild", "cart_summary", "--engine", "local", "--json").rows()[0]["generation"]
    fold(at_work, FOLD, SLIP)
    assert "view cart_summary was folded by other code of the same version" in at_work("status").err
    assert "view cart_summary was folded by other code of the same version" in doctor_on_views(at_work)
    verified = at_work("verify", "cart_summary")
    assert (verified.code, "differs in " in verified.out) == (3, True), verified.out + verified.err
    assert re.search(rf"generation {first} of view cart_summary was folded by other code \(\w+\); ", verified.err)
    assert "it is compared with this code (" in verified.err
    sample = at_work("rebuild", "cart_summary", "--engine", "local", "--sample", "100%")
    assert (sample.code, "3 rows would change" in sample.out) == (3, True), sample.out + sample.err
    held = at_work("rebuild", "cart_summary", "--engine", "local", "--hold")
    assert held.code == 0, held.err
    assert "held: projectors keep it up to date" in held.out
    assert items(at_work, "cart_summary", "a") == 4, "readers see nothing of it"
    told = at_work("diff", "cart_summary", "--live", "--held")
    assert told.code == 3
    assert "0 rows equal" in told.out
    assert "3 differ" in told.out
    assert "items" in told.out
    refused = at_work("promote", "cart_summary")
    assert (refused.code, "start one of that code first: leftfold run cart_summary" in refused.err) == (78, True)
    newer = at_work.start(["run", "cart_summary"])
    try:
        wait_until(lambda: at_work("promote", "cart_summary").code == 0, "a tail of the new code")
        assert at_work("send", "AddItem", ADD.format("a", "jam", 1, "2.50")).code == 0
        wait_until(lambda: items(at_work, "cart_summary", "a") == 405, "the tail of the new code")
        assert at_work("verify", "cart_summary").code == 0
        assert "standing by" in at_work("status").err
        assert "of other code, standing by: " in doctor_on_views(at_work)
        rolled = at_work("rollback", "cart_summary")
        assert rolled.code == 0, rolled.err
    finally:
        _end(newer)
    assert items(at_work, "cart_summary", "a") == 5
    fold(at_work, SLIP, FOLD)
    assert at_work("diff", "cart_summary", "--between", first, "live").code == 0
    asked = at_work("drop", "cart_summary", "kept")
    assert (asked.code, "leftfold drop cart_summary" in asked.err) == (2, True), asked.err
    dropped = at_work("drop", "cart_summary", "kept", "--yes")
    assert dropped.code == 0, dropped.err
    assert at_work("drop", "cart_summary", "live").code == 2


@pytest.mark.faults
def test_parked_rows_are_freed_once_the_fold_is_mended(
    served: Shell, run: subprocess.Popen[bytes], wait_until: Wait
) -> None:
    """The last test: the service ends, and starts again with a broken and then with a mended fold."""
    _end(run)
    fold(served, "    row = row or CartSummary()", POISON)
    broken = _run(served)
    try:
        wait_until(lambda: served("send", "AddItem", ADD.format("p", "poison", 1, "1.00")).code == 0, "the worker")
        assert served("send", "AddItem", ADD.format("p", "tea", 1, "1.00")).code == 0
        wait_until(lambda: "view cart_summary parks p" in served("status").err, "the row to be parked")
        assert "start the projectors again, then: leftfold retry cart_summary" in served("get", "cart_summary", "p").err
        told = served("retry", "cart_summary")
        assert (told.code, "no poison please" in told.out) == (1, True)
    finally:
        _end(broken)
    fold(served, POISON, "    row = row or CartSummary()")
    mended = _run(served)
    try:
        back = served("promote", "cart_summary", "--generation", "live")  # to the code from before the broken one
        assert back.code == 0, back.err
        told = served("retry", "cart_summary", "p", "--json")
        assert (told.code, told.rows()[0]["freed"]) == (0, ["p"]), told.err
        assert items(served, "cart_summary", "p") == 2
        assert served("verify", "cart_summary").code == 0
    finally:
        _end(mended)


def _run(shell: Shell) -> subprocess.Popen[bytes]:
    return shell.start(["run"])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(240.0)
