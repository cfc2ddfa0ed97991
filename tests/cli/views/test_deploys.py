"""Deploys of changed views: held back, broken, corrected, and beside the code of before."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, items, running, serving
from tests.servers import Addresses, emptied
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

FOLD = "items=row.items + quantity, total"
SLIP = "items=row.items + quantity + 100, total"
VERSION = "evolve=evolve)"
WHOLE = "    row = row or CartSummary()"
BROKEN = f'    raise ValueError("not like this")\n{WHOLE}'
POISON = f"""    if isinstance(event, ItemAdded) and event.product_id == "poison":
        raise ValueError("no poison please")
{WHOLE}"""
CARTS = "abcd"


@pytest.fixture
def shell(lasting: Addresses, tmp_path: Path) -> Shell:
    """A new project on servers with nothing in them."""
    assert Shell(tmp_path)("new", "shop").code == 0
    return Shell(tmp_path / "shop").at(emptied(lasting))


@pytest.fixture
def filled(shell: Shell) -> Shell:
    """The project once it has folded an item into each cart; nothing is at work."""
    with serving(shell):
        for cart in CARTS:
            add(shell, cart)
        wait_until(lambda: all_items(shell) == [1] * 4, "the projector")
    return shell


def edit(shell: Shell, before: str, after: str) -> None:
    """Changes the code of cart_summary."""
    file = shell.place / "shop" / "projections" / "cart_summary.py"
    text = file.read_text("utf-8")
    assert before in text
    file.write_text(text.replace(before, after), "utf-8")


def add(shell: Shell, cart: str, product: str = "tea") -> None:
    fields = json.dumps({"cart_id": cart, "product_id": product, "quantity": 1, "price": "1.00"})
    shell("send", "AddItem", fields, "--timeout", "240").ok()


def all_items(shell: Shell) -> list[int]:
    return [items(shell, cart) for cart in CARTS]


def doctor_on_views(shell: Shell) -> dict[str, Any]:
    """What `leftfold doctor` says of the views."""
    return next(row for row in shell("doctor", "--json").rows() if row["about"] == "views")


def test_a_broken_fold_stops_a_rebuild_or_its_view_alone_and_a_corrected_one_loses_nothing(filled: Shell) -> None:
    edit(filled, VERSION, f"{VERSION[:-1]}, version=2)")
    edit(filled, WHOLE, BROKEN)
    result = filled("rebuild", "cart_summary", "--engine", "local", "--max-parked", "2")
    assert result.code != 0
    assert "more than 2 keys are parked" in result.err
    assert all_items(filled) == [-1] * 4
    edit(filled, BROKEN, WHOLE)
    edit(filled, ", version=2", "")
    assert all_items(filled) == [1] * 4, "the version before is as it was"
    edit(filled, VERSION, f"{VERSION[:-1]}, version=3)")
    edit(filled, WHOLE, BROKEN)
    twin = filled("rebuild", "cart_summary", "--engine", "local", "--max-parked", "100")
    assert (twin.code, "parked keys: 4" in twin.out) == (0, True), "without the bound a broken fold goes live"
    assert all_items(filled) == [-1] * 4
    edit(filled, "version=3", "version=40")  # of another size: Python takes bytecode for that of an equally large file
    with running(filled, "run", "--max-parked", "0"):
        # Not one may be parked: the first batch may hold any share of the events, and what it parks stays parked.
        wait_until(lambda: "more than 0 keys are parked" in filled.said(), "the view to stop")
        add(filled, "a")
        filled("verify", "customer_spend").ok()
    edit(filled, BROKEN, WHOLE)
    with running(filled, "run", "--max-parked", "0"):
        wait_until(lambda: all_items(filled) == [2, 1, 1, 1], "the corrected fold to catch up")
        filled("verify", "cart_summary").ok()


def test_a_changed_fold_is_noticed_held_back_compared_and_promoted(filled: Shell) -> None:
    """As docs/views.md has it typed, while a projector of the old code runs."""
    with serving(filled):
        first = filled("rebuild", "cart_summary", "--engine", "local", "--json").rows()[0]["generation"]
        edit(filled, FOLD, SLIP)
        assert "view cart_summary was folded by other code of the same version" in filled("status").err
        assert "view cart_summary was folded by other code of the same version" in doctor_on_views(filled)["message"]
        verified = filled("verify", "cart_summary")
        assert (verified.code, "differs in " in verified.out) == (3, True), verified.out + verified.err
        assert re.search(rf"generation {first} of view cart_summary was folded by other code \(\w+\); ", verified.err)
        assert "it is compared with this code (" in verified.err
        sample = filled("rebuild", "cart_summary", "--engine", "local", "--sample", "100%")
        assert (sample.code, "4 rows would change" in sample.out) == (3, True), sample.out + sample.err
        held = filled("rebuild", "cart_summary", "--engine", "local", "--hold")
        assert (held.code, "held: projectors keep it up to date" in held.out) == (0, True), held.err
        assert items(filled, "a") == 1, "readers see nothing of it"
        result = filled("diff", "cart_summary", "--live", "--held")
        assert result.code == 3
        assert all(said in result.out for said in ("0 rows equal", "4 differ", "items"))
        filled("promote", "cart_summary").ended(78, "start one of that code first: leftfold run cart_summary")
        with running(filled.beside("newer"), "run", "cart_summary"):
            wait_until(lambda: filled("promote", "cart_summary").code == 0, "a projector of the new code")
            add(filled, "a")
            wait_until(lambda: items(filled, "a") == 202, "the projector of the new code")
            assert filled("verify", "cart_summary").code == 0
            assert "standing by" in filled("status").err
            assert "of other code, standing by: " in doctor_on_views(filled)["message"]
            filled("rollback", "cart_summary").ok()
        assert items(filled, "a") == 2
        edit(filled, SLIP, FOLD)
        assert filled("diff", "cart_summary", "--between", first, "live").code == 0
        filled("drop", "cart_summary", "kept").ended(2, "leftfold drop cart_summary")
        filled("drop", "cart_summary", "kept", "--yes").ok()
        assert filled("drop", "cart_summary", "live").code == 2


def test_parked_rows_are_freed_once_the_fold_is_corrected(filled: Shell) -> None:
    edit(filled, WHOLE, POISON)
    with serving(filled):
        add(filled, "p", "poison")
        add(filled, "p")
        wait_until(lambda: "view cart_summary parks p" in filled("status").err, "the row to be parked")
        assert "start the projectors again, then: leftfold retry cart_summary" in filled("get", "cart_summary", "p").err
        result = filled("retry", "cart_summary")
        assert (result.code, "no poison please" in result.out) == (1, True)
    edit(filled, POISON, WHOLE)
    with serving(filled):
        back = filled("promote", "cart_summary", "--generation", "live")  # to the code from before the broken one
        assert back.code == 0, back.err
        result = filled("retry", "cart_summary", "p", "--json")
        assert (result.code, result.rows()[0]["freed"]) == (0, ["p"]), result.err
        assert items(filled, "p") == 2
        assert filled("verify", "cart_summary").code == 0


def test_old_and_new_code_run_side_by_side_and_the_old_generation_goes_when_no_reader_needs_it(
    shell: Shell, tmp_path: Path
) -> None:
    place = tmp_path / "next" / shell.place.name
    shutil.copytree(shell.place, place, ignore=shutil.ignore_patterns("__pycache__"))
    new = Shell(place, shell._environment)
    edit(new, FOLD, SLIP)
    edit(new, VERSION, f"{VERSION[:-1]}, version=2)")
    with serving(shell):
        add(shell, "a")
        with running(new, "run", "cart_summary"):
            wait_until(lambda: items(new, "a") > 0, "the new projector")
            for cart in CARTS[1:]:
                add(shell, cart)
            wait_until(lambda: all_items(shell) == [1] * 4, "the old projector")
            wait_until(lambda: all_items(new) == [101] * 4, "the new projector")
            rows = new("status", "--json").rows()
            (old,) = {str(row["generation"]) for row in rows if row.get("phase") == "live (other code)"}
            # A projector that stands still for three seconds is taken for dead.
            wait_until(lambda: f"drop cart_summary {old}" not in new("status").err, "the old projector to be at work")
            new("drop", "cart_summary", old, "--yes").ended(2, "projectors of that are at work")
    wait_until(
        lambda: f"leftfold drop cart_summary {old} --yes" in new("status").err, "the old projector to be off the list"
    )
    looked = {row["about"]: row for row in new("doctor", "--json").rows()}
    assert looked["views"]["well"]
    assert f"leftfold drop cart_summary {old} --yes" in looked["views"]["message"]
    assert looked["orphans"]["well"], looked["orphans"]
    new("drop", "cart_summary", old).ended(2, "would get ViewNotBuilt")
    assert new("drop", "cart_summary", old, "--yes").code == 0
    assert (items(shell, "b"), items(new, "b")) == (-1, 101)
    assert new("drop", "cart_summary").code == 2
    assert "every generation that has keys is in its registry" in new("drop", "cart_summary", "--orphans").out
