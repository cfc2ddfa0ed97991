"""A new user's first ten minutes, typed into real servers, in order."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, Shell, Typed

pytestmark = pytest.mark.servers

Wait = Callable[[Callable[[], object], str], None]
Start = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
TEA = '{"cart_id": "c-1", "product_id": "tea", "quantity": 2, "price": "3.20"}'
LATE_EXECUTORS = """
import os, pathlib, sys, time
if "pyspark.daemon" in sys.orig_argv:
    here = pathlib.Path(__file__).parent
    (here / "begun").touch()
    while not (here / "released").exists() and os.getppid() != 1:
        time.sleep(0.05)
"""


def before_anything_ran_a_command_says_what_to_start(up: Shell) -> None:
    told = up("send", "AddItem", TEA)
    assert told.code == 69
    assert "app shop has never run at 127.0.0.1:" in told.err
    assert told.err.rstrip().endswith("start it in another terminal: leftfold run")


def before_anything_ran_check_says_what_run_would_make(up: Shell) -> None:
    told = up("check")
    assert told.code == 0
    assert "leftfold run would make: shop.replies (4 partitions), carts.commands (4 partitions)" in told.err


def before_anything_ran_a_view_says_how_to_build_it(up: Shell) -> None:
    told = up("get", "cart_summary", "c-1")
    assert told.code == 1
    assert "start a projector: leftfold run cart_summary" in told.err


def servers_are_up_and_up_again_is_nothing_new(up: Shell) -> None:
    rows = {row["name"]: row for row in up("status", "--json").rows() if row["kind"] == "server"}
    assert rows.keys() == {"kafka", "redis"}
    assert all(row["state"] == "up" for row in rows.values())
    (again,) = up("up", "--json").rows()
    assert (again["kafka"], again["redis"]) == (rows["kafka"]["address"], rows["redis"]["address"])


def a_command_is_accepted_and_its_position_can_be_pasted_into_get(at_work: Shell, wait_until: Wait) -> None:
    wait_until(lambda: '"serving"' in at_work.said() and '"following"' in at_work.said(), "worker and tail")
    sent = at_work("send", "AddItem", TEA)
    assert sent.code == 0, sent.err
    assert "at = " in sent.err, "what was filled in"
    assert sent.out.startswith("accepted: carts c-1 is at version 1 (1 event), position carts.events[")
    position = sent.out.rsplit("position ", 1)[1].strip()
    row = at_work("get", "cart_summary", "c-1", "--after", position, "--timeout", "10")
    assert row.code == 0, row.err
    assert "total        6.40" in row.out
    assert "stream version 1" in row.err


def a_command_sent_again_is_not_decided_again(at_work: Shell) -> None:
    body = json.dumps({**json.loads(TEA), "at": "2026-01-01T00:00:00Z"})
    without = at_work("send", "AddItem", TEA, "--id", "till-1/2")
    assert (without.code, "with an id the command must be the same each time: say at" in without.err) == (
        2,
        True,
    )
    first, again = (at_work("send", "AddItem", "-", "--id", "till-1/2", "--json", stdin=body) for _ in range(2))
    assert first.rows()[0]["version"] == again.rows()[0]["version"] == 2
    assert "at = " not in first.err


def a_rule_that_says_no_is_quoted(at_work: Shell) -> None:
    nothing = at_work("send", "CheckOut", '{"cart_id": "c-0", "customer_id": "ada"}')
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.splitlines()[-1] == "rejected: CartEmpty: cart c-0 has nothing in it"
    assert "at = " not in nothing.err, "nothing happened then"
    (row,) = at_work("send", "CheckOut", '{"cart_id": "c-0", "customer_id": "ada"}', "--json").rows()
    assert (row["error"], row["fields"]) == ("CartEmpty", {"cart_id": "c-0"})


def an_expected_version_that_is_wrong_is_a_conflict(at_work: Shell) -> None:
    told = at_work("send", "CheckOut", '{"cart_id": "c-1", "customer_id": "ada"}', "--expected-version", "7")
    assert told.code == 1
    assert "stream 'c-1' is at version 2, not at 7" in told.err
    asked = ("send", "CheckOut", '{"cart_id": "c-1", "customer_id": "ada"}', "--expected-version", "7", "--json")
    (row,) = (again := at_work(*asked)).rows()
    assert (again.code, row["error"], row["fields"]["actual"]) == (1, "ConflictError", 2)
    assert at_work("send", "CheckOut", '{"cart_id": "c-1", "customer_id": "ada"}', "--expected-version", "2").code == 0


def the_events_of_a_stream_are_listed_in_order(at_work: Shell) -> None:
    rows = at_work("events", "carts", "c-1", "--json").rows()
    assert [(row["version"], row["type"], row["decision"]) for row in rows] == [
        (1, "carts.ItemAdded.v1", "1/1"),
        (2, "carts.ItemAdded.v1", "1/1"),
        (3, "carts.CartCheckedOut.v1", "1/1"),
    ]
    assert rows[2]["event"]["total"] == "12.80"
    plain = at_work("events", "carts", "--tail", "1").out
    assert "CartCheckedOut" in plain
    assert len(plain.splitlines()) == 1
    assert len(at_work("events", "carts", "--from-start", "--limit", "2").out.splitlines()) == 2


def following_shows_what_comes(
    at_work: Shell,
    started: Start,
    wait_until: Wait,
) -> None:
    other = Shell(at_work.place)
    other.log = at_work.place / "follow.log"
    started(other, ["events", "carts", "--follow", "--tail", "1"])
    wait_until(lambda: "CartCheckedOut" in other.said(), "the last event")
    at_work("send", "AddItem", TEA.replace("c-1", "c-9"))
    wait_until(lambda: "c-9" in other.said(), "the new event")
    assert len(other.said().splitlines()) == 2


def an_unknown_category_comes_with_the_known(at_work: Shell) -> None:
    told = at_work("events", "cats")
    assert told.code == 2
    assert told.err == "error: there is no category in the log called 'cats'; did you mean carts?\n  known: carts\n"


def a_stream_without_events_comes_with_some_that_have(at_work: Shell) -> None:
    told = at_work("events", "carts", "nope")
    assert (told.code, told.out) == (1, "")
    assert told.err == "no event of stream 'nope' is in category carts; the last events there are of: c-1, c-9\n"


def a_row_that_no_event_touches_comes_with_some_that_are_there(at_work: Shell) -> None:
    told = at_work("explain", "customer_spend", "nope")
    assert (told.code, told.out) == (1, "")
    assert "no event touches row 'nope' of view customer_spend up to carts.events[" in told.err
    assert told.err.endswith("; rows there are: ada\n")


def the_last_steps_of_a_row_are_explained_alone(at_work: Shell) -> None:
    whole, last = (at_work("explain", "cart_summary", "c-1", *more, "--json") for more in ((), ("--last", "2")))
    assert whole.code == last.code == 0
    assert last.rows() == whole.rows()[-2:]
    assert len(whole.rows()) == 3


def a_held_generation_is_not_read_by_key_and_what_shows_it_is_named(at_work: Shell) -> None:
    told = at_work("get", "cart_summary@held", "c-1")
    assert told.code == 1
    assert "look at a held one with leftfold explain cart_summary@held KEY" in told.err
    assert "--as-of PLACE --name held" not in told.err
    assert "names there are: none; build it: leftfold rebuild" in at_work("get", "cart_summary@march", "c-1").err


def a_view_of_another_key_is_read_as_json(at_work: Shell) -> None:
    (row,) = at_work("get", "customer_spend", "ada", "--json").rows()
    assert row["row"] == {"orders": 1, "total": "12.80"}
    missing = at_work("get", "customer_spend", "bob")
    assert (missing.code, missing.out, missing.err) == (1, "", "customer_spend has no row for 'bob'\n")


def a_view_that_does_not_get_there_in_time_is_exit_4(at_work: Shell) -> None:
    after = json.dumps({"carts.events": {str(p): 10**9 for p in range(4)}})
    told = at_work("get", "cart_summary", "c-1", "--after", after, "--timeout", "0.2")
    assert told.code == 4
    assert "is its projector running? leftfold run cart_summary" in told.err


def status_shows_workers_and_views(at_work: Shell, wait_until: Wait) -> None:
    def views() -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in at_work("status", "--json").rows() if row["kind"] == "view"}

    wait_until(lambda: all(row["lag"] == 0 for row in views().values()), "the views")
    assert {name: (row["phase"], row["live"]) for name, row in views().items()} == {
        "cart_summary": ("live", True),
        "customer_spend": ("live", True),
    }
    (carts,) = [row for row in at_work("status", "--json").rows() if row["kind"] == "decider"]
    assert (carts["per_command"] > 0, carts["answers_dropped"], carts["dead"]) == (True, 0, 0)
    told = at_work("status")
    assert told.code == 0
    assert told.err == ""
    assert [line.split()[0] for line in told.out.splitlines() if line] == [
        "server", "kafka", "redis", "decider", "carts", "view", "cart_summary", "customer_spend",
    ]  # fmt: skip


def a_rebuild_is_planned_without_doing_it(at_work: Shell) -> None:
    (row,) = at_work("rebuild", "cart_summary", "--plan", "--json").rows()
    assert (row["view"], row["buckets"]) == ("cart_summary", 4)
    planned = at_work("rebuild", "--plan")
    assert "rebuild cart_summary, customer_spend from carts.events (4 partitions)" in planned.out, "one pass, one time"
    assert planned.out.endswith("in this process: 0 s expected, and 8 s with Spark\n")
    assert "starting Spark" not in planned.out + planned.err
    assert _generations(at_work).keys() == {("cart_summary", "live"), ("customer_spend", "live")}


def a_rebuild_in_this_process_agrees_with_the_tail_and_swaps(at_work: Shell) -> None:
    told = at_work("rebuild", "--engine", "local", "--json")
    assert told.code == 0, told.err
    assert [(row["view"], row["agreement"], row["swapped"]) for row in told.rows()] == [
        ("cart_summary", "equal", True),
        ("customer_spend", "equal", True),
    ]
    live = {view: id_ for (view, phase), id_ in _generations(at_work).items() if phase == "live"}
    assert live == {row["view"]: row["generation"] for row in told.rows()}
    assert at_work("get", "customer_spend", "ada", "--json").rows()[0]["row"] == {"orders": 1, "total": "12.80"}


def a_rebuild_on_spark_agrees_as_well(at_work: Shell) -> None:
    (row,) = at_work("rebuild", "customer_spend", "--master", "local[1]", "--json").rows()
    assert (row["agreement"], row["swapped"], row["rows"]) == ("equal", True, 1)


def ctrl_c_leaves_the_live_generation_and_nothing_else(
    at_work: Shell, started: Start, tmp_path: Path, wait_until: Wait
) -> None:
    before = _generations(at_work)
    # However fast the machine is, the rebuild is not done when it is interrupted: its executors wait.
    (tmp_path / "sitecustomize.py").write_text(LATE_EXECUTORS, "utf-8")
    other = Shell(at_work.place, {"PYTHONPATH": f"{tmp_path}:{ROOT / 'framework'}"})
    other.log = at_work.place / "rebuild.log"
    process = started(other, ["rebuild", "cart_summary", "--master", "local[1]", "--hold"])
    wait_until((tmp_path / "begun").exists, "the rebuild to begin")
    process.send_signal(signal.SIGINT)
    told = "interrupted; the live generation of cart_summary is as it was"
    wait_until(lambda: told in other.said(), "the interruption")
    (tmp_path / "released").touch()
    assert process.wait(240.0) == 130
    assert "Go on: leftfold rebuild cart_summary --master 'local[1]' --hold\n" in other.said(), "what was typed"
    after = {(view, phase): id_ for (view, phase), id_ in _generations(at_work).items() if phase != "bulk"}
    assert after == before, "a bulk one, if any bucket of it is whole, is gone on with by the next rebuild"


def an_unknown_view_is_not_rebuilt(at_work: Shell) -> None:
    told = at_work("rebuild", "cart_sumary")
    assert told.code == 2
    assert "did you mean cart_summary?" in told.err


def _generations(shell: Shell) -> dict[tuple[str, str], str]:
    rows = shell("status", "--json").rows()
    return {(row["name"], row["phase"]): row["generation"] for row in rows if row["kind"] == "view"}


def check_finds_topics_that_do_not_fit(at_work: Shell) -> None:
    file = at_work.place / "shop" / "services" / "carts" / "app.py"
    before = file.read_text("utf-8")
    file.write_text(before.replace("partitions=4", "partitions=16"), "utf-8")
    try:
        told = at_work("check")
    finally:
        file.write_text(before, "utf-8")
    assert told.code == 1
    assert "topic carts.commands has 4 partitions, but app shop says partitions=16" in told.out


def a_fold_that_changes_is_found_and_can_be_accepted(at_work: Shell) -> None:
    file = at_work.place / "shop" / "projections" / "customer_spend.py"
    before, lock = file.read_text("utf-8"), at_work.place / "leftfold.lock"
    locked = lock.read_text("utf-8")
    file.write_text(before.replace("row.orders + 1", "row.orders + 2"), "utf-8")
    try:
        told, accepted, after = at_work("check"), at_work("check", "--write"), at_work("check")
    finally:
        file.write_text(before, "utf-8")
        lock.write_text(locked, "utf-8")
    assert told.code == 1
    assert "error view customer_spend: its fold changed since leftfold.lock; raise version= to 2" in told.out
    assert (accepted.code, after.code) == (0, 0)


def line_of(told: Typed) -> list[str]:
    """What it says to type again."""
    return shlex.split(told.err[told.err.index("leftfold send") :].splitlines()[0])[1:]


def without_a_worker_the_outcome_is_unknown_and_the_same_line_can_be_typed_again(
    up: Shell,
    run: subprocess.Popen[bytes],
    started: Start,
    wait_until: Wait,
) -> None:
    run.terminate()
    run.wait(240.0)
    assert {"starting", "serving", "following", "stopped"} <= {line["event"] for line in up.lines()}
    told = up("send", "AddItem", TEA.replace("c-1", "c-7"), "--timeout", "0.5")
    assert told.code == 75
    # The broker is given a second to say who owns it, which may be too short.
    wait_until(lambda: "no worker owns carts.commands" in up(*line_of(told), "--timeout", "0.5").err, "the reason")
    started(up, ["run"])
    assert up(*line_of(told), "--timeout", "240").code == 0
    assert [row["version"] for row in up("events", "carts", "c-7", "--json").rows()] == [1]


def down_stops_and_says_so_and_then_nothing_runs(up: Shell) -> None:
    assert up.lines()
    assert up("down").out.startswith("stopped; the data stays in ")
    assert up("down").out.startswith("nothing runs in ")
    told = up("status")
    assert told.code == 69
    assert "kafka and redis: nothing runs in .leftfold; start it: leftfold up" in told.err
    refused = up("run")
    assert refused.code == 78
    assert "no Kafka address: start servers with `leftfold up`" in refused.err


def test_a_new_users_first_ten_minutes(up: Shell, started: Start, tmp_path: Path, wait_until: Wait) -> None:
    before_anything_ran_a_command_says_what_to_start(up)
    before_anything_ran_check_says_what_run_would_make(up)
    before_anything_ran_a_view_says_how_to_build_it(up)
    servers_are_up_and_up_again_is_nothing_new(up)
    run = started(up, ["run"])
    a_command_is_accepted_and_its_position_can_be_pasted_into_get(up, wait_until)
    a_command_sent_again_is_not_decided_again(up)
    a_rule_that_says_no_is_quoted(up)
    an_expected_version_that_is_wrong_is_a_conflict(up)
    the_events_of_a_stream_are_listed_in_order(up)
    following_shows_what_comes(up, started, wait_until)
    an_unknown_category_comes_with_the_known(up)
    a_stream_without_events_comes_with_some_that_have(up)
    a_row_that_no_event_touches_comes_with_some_that_are_there(up)
    the_last_steps_of_a_row_are_explained_alone(up)
    a_held_generation_is_not_read_by_key_and_what_shows_it_is_named(up)
    a_view_of_another_key_is_read_as_json(up)
    a_view_that_does_not_get_there_in_time_is_exit_4(up)
    status_shows_workers_and_views(up, wait_until)
    a_rebuild_is_planned_without_doing_it(up)
    a_rebuild_in_this_process_agrees_with_the_tail_and_swaps(up)
    a_rebuild_on_spark_agrees_as_well(up)
    ctrl_c_leaves_the_live_generation_and_nothing_else(up, started, tmp_path, wait_until)
    an_unknown_view_is_not_rebuilt(up)
    check_finds_topics_that_do_not_fit(up)
    a_fold_that_changes_is_found_and_can_be_accepted(up)
    without_a_worker_the_outcome_is_unknown_and_the_same_line_can_be_typed_again(up, run, started, wait_until)
    down_stops_and_says_so_and_then_nothing_runs(up)
