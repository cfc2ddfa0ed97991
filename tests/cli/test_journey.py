"""Journeys, typed in order: a new user's first ten minutes on their own servers, and a project on a Redis cluster."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from tests.cli.shell import Shell, Typed, serving
from tests.redis.cluster_set import ClusterSet
from tests.servers import Addresses
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

Start = Callable[[Shell, Sequence[str]], subprocess.Popen[bytes]]
SECONDS = 240.0
TEA = '{"cart_id": "c-1", "product_id": "tea", "quantity": 2, "price": "3.20"}'
OUT = '{"cart_id": "c-1", "customer_id": "ada"}'


def test_a_new_users_first_ten_minutes(up: Shell, started: Start) -> None:
    before_anything_ran_each_command_says_what_to_start(up)
    servers_are_up_and_up_again_is_nothing_new(up)
    run = started(up, ["run"])
    up.wait_said("serving", "following")
    a_command_is_accepted_and_its_position_can_be_pasted_into_get(up)
    a_command_sent_again_is_not_decided_again(up)
    a_refusal_is_quoted_and_a_wrong_version_is_a_conflict(up)
    events_are_listed_in_order_and_followed(up, started)
    rows_are_read_and_explained(up)
    rows_are_watched_and_it_is_said_how_to_go_on(up, started)
    status_shows_workers_and_views(up)
    a_rebuild_is_planned_and_done_and_agrees_with_the_projector(up)
    a_fold_that_changes_is_found_and_can_be_accepted(up)
    topics_that_do_not_fit_stop_everything(up)
    line = sigterm_is_no_failure_and_the_line_of_an_unknown_outcome_can_be_typed_again(up, run)
    ctrl_c_stops_all_parts_in_order_and_no_command_line_has_the_password(up, started, line)
    dev_uses_servers_that_run_already_and_leaves_them(up, started)
    down_stops_and_says_so_and_then_nothing_runs(up)


@contextmanager
def changed(shell: Shell, file: str, before: str, after: str) -> Iterator[None]:
    """The code of a file is other while the block runs."""
    path = shell.place / "shop" / file
    text = path.read_text("utf-8")
    path.write_text(text.replace(before, after), "utf-8")
    try:
        yield
    finally:
        path.write_text(text, "utf-8")


def before_anything_ran_each_command_says_what_to_start(up: Shell) -> None:
    sent, checked, got = up("send", "AddItem", TEA), up("check"), up("get", "cart_summary", "c-1")
    assert (sent.code, checked.code, got.code) == (69, 0, 1)
    assert "app shop has never run at 127.0.0.1:" in sent.err
    assert sent.err.rstrip().endswith("start it in another terminal: leftfold run")
    assert "leftfold run would make: shop.replies (4 partitions), carts.commands (4 partitions)" in checked.err
    assert "start a projector: leftfold run cart_summary" in got.err


def servers_are_up_and_up_again_is_nothing_new(up: Shell) -> None:
    rows = {row["name"]: row for row in up("status", "--json").rows() if row["kind"] == "server"}
    assert {name: row["state"] for name, row in rows.items()} == {"kafka": "up", "redis": "up"}
    (again,) = up("up", "--json").rows()
    assert (again["kafka"], again["redis"]) == (rows["kafka"]["address"], rows["redis"]["address"])


def a_command_is_accepted_and_its_position_can_be_pasted_into_get(up: Shell) -> None:
    sent = up("send", "AddItem", TEA).ok()
    assert "at = " in sent.err, "what was filled in"
    assert sent.out.startswith("accepted: carts c-1 is at version 1 (1 event), position carts.events[")
    row = up("get", "cart_summary", "c-1", "--after", position_in(sent), "--timeout", "240").ok()
    assert "total        6.40" in row.out
    assert "stream version 1" in row.err


def position_in(sent: Typed) -> str:
    return sent.out.rsplit("position ", 1)[1].strip()


def a_command_sent_again_is_not_decided_again(up: Shell) -> None:
    up("send", "AddItem", TEA, "--id", "till-1/2").ended(2, "with an id the command must be the same each time: say at")
    body = json.dumps({**json.loads(TEA), "at": "2026-01-01T00:00:00Z"})
    first, again = (up("send", "AddItem", "-", "--id", "till-1/2", "--json", stdin=body) for _ in range(2))
    assert first.rows()[0]["version"] == again.rows()[0]["version"] == 2
    assert "at = " not in first.err


def a_refusal_is_quoted_and_a_wrong_version_is_a_conflict(up: Shell) -> None:
    nothing = up("send", "CheckOut", OUT.replace("c-1", "c-0"))
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.splitlines()[-1] == "rejected: CartEmpty: cart c-0 has nothing in it"
    assert "at = " not in nothing.err, "nothing happened then"
    (row,) = up("send", "CheckOut", OUT.replace("c-1", "c-0"), "--json").rows()
    assert (row["error"], row["fields"]) == ("CartEmpty", {"cart_id": "c-0"})
    for as_json in ((), ("--json",)):
        result = up("send", "CheckOut", OUT, "--expected-version", "7", *as_json)
        assert result.code == 1
        assert as_json or "stream 'c-1' is at version 2, not at 7" in result.err
    (row,) = result.rows()
    assert (row["error"], row["fields"]["actual"]) == ("ConflictError", 2)
    assert up("send", "CheckOut", OUT, "--expected-version", "2").code == 0


def events_are_listed_in_order_and_followed(up: Shell, started: Start) -> None:
    rows = up("events", "carts", "c-1", "--json").rows()
    assert [(row["version"], row["type"], row["decision"]) for row in rows] == [
        (1, "carts.ItemAdded.v1", "1/1"),
        (2, "carts.ItemAdded.v1", "1/1"),
        (3, "carts.CartCheckedOut.v1", "1/1"),
    ]
    assert rows[2]["event"]["total"] == "12.80"
    plain = up("events", "carts", "--tail", "1").out
    assert "CartCheckedOut" in plain
    assert len(plain.splitlines()) == 1
    assert len(up("events", "carts", "--from-start", "--limit", "2").out.splitlines()) == 2
    other = up.beside("follow")
    following = started(other, ["events", "carts", "--follow", "--tail", "1"])
    other.wait_until(following, lambda said: "CartCheckedOut" in said)
    assert up("send", "AddItem", TEA.replace("c-1", "c-9"), "--timeout", "240").code == 0
    other.wait_until(following, lambda said: "c-9" in said)
    assert len(other.said().splitlines()) == 2
    unknown, nothing = up("events", "cats"), up("events", "carts", "nope")
    assert (unknown.code, nothing.code, nothing.out) == (2, 1, "")
    assert unknown.err == "error: there is no category in the log called 'cats'; did you mean carts?\n  known: carts\n"
    assert nothing.err == "no event of stream 'nope' is in category carts; the last events there are of: c-1, c-9\n"


def rows_are_read_and_explained(up: Shell) -> None:
    wait_until(lambda: up("get", "customer_spend", "ada").code == 0, up.said)
    (row,) = up("get", "customer_spend", "ada", "--json").rows()
    assert row["row"] == {"orders": 1, "total": "12.80"}
    missing = up("get", "customer_spend", "bob")
    assert (missing.code, missing.out, missing.err) == (1, "", "customer_spend has no row for 'bob'\n")
    after = json.dumps({"carts.events": {str(p): 10**9 for p in range(4)}})
    up("get", "cart_summary", "c-1", "--after", after, "--timeout", "0.2").ended(
        4, "is its projector running? leftfold run cart_summary"
    )
    held = up("get", "cart_summary@held", "c-1").ended(
        1, "look at a held one with leftfold explain cart_summary@held KEY"
    )
    assert "--as-of PLACE --name held" not in held.err
    assert "names there are: none; build it: leftfold rebuild" in up("get", "cart_summary@march", "c-1").err
    untouched = up("explain", "customer_spend", "nope")
    assert (untouched.code, untouched.out) == (1, "")
    assert "no event touches row 'nope' of view customer_spend up to carts.events[" in untouched.err
    assert untouched.err.endswith("; rows there are: ada\n")
    whole, last = (up("explain", "cart_summary", "c-1", *more, "--json") for more in ((), ("--last", "2")))
    assert (whole.code, last.code, len(whole.rows())) == (0, 0, 3)
    assert last.rows() == whole.rows()[-2:]


def rows_are_watched_and_it_is_said_how_to_go_on(up: Shell, started: Start) -> None:
    view, row = up.beside("watch"), up.beside("row")
    start = json.dumps(up("get", "cart_summary", "c-1", "--json").rows()[0]["position"])
    watching = started(view, ["watch", "cart_summary", "--after", start])
    looking = started(row, ["get", "cart_summary", "c-20", "--watch", "--json"])
    row.wait_until(looking, lambda said: '"row":null' in said)
    for total in ("6.40", "12.80"):
        assert up("send", "AddItem", TEA.replace("c-1", "c-20")).code == 0
        row.wait_until(looking, lambda said, total=total: total in said)  # type: ignore[misc]  # a lambda's own name
    view.wait_until(watching, lambda said: all(word in said for word in ("c-20", "v1", "total=6.40", "total=12.80")))
    for process in (watching, looking):
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    rows = [json.loads(line) for line in row.said().splitlines()]
    assert [(one["key"], one.get("version")) for one in rows] == [("c-20", None), ("c-20", 1), ("c-20", 2)]
    after = view.said().rsplit("to continue here: ", 1)[1]
    assert up("send", "AddItem", TEA.replace("c-1", "c-21")).code == 0
    again = up(*shlex.split(after)[1:], "--json", "--limit", "1")
    assert [(one["key"], one["row"]["total"], one["version"]) for one in again.rows()] == [("c-21", "6.40", 1)]
    assert "did you mean cart_summary?" in up("watch", "cart_sumary").err
    nothing = up("watch", "cart_summary", "c-404", "--timeout", "0.2")
    assert (nothing.code, nothing.out) == (0, "")


def status_shows_workers_and_views(up: Shell) -> None:
    def views() -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in up("status", "--json").rows() if row["kind"] == "view"}

    wait_until(lambda: all(row["lag"] == 0 for row in views().values()), "the views")
    assert {name: (row["phase"], row["live"]) for name, row in views().items()} == {
        "cart_summary": ("live", True),
        "customer_spend": ("live", True),
    }
    (carts,) = [row for row in up("status", "--json").rows() if row["kind"] == "decider"]
    assert (carts["per_command"] > 0, carts["answers_dropped"], carts["dead"]) == (True, 0, 0)
    result = up("status")
    assert (result.code, result.err) == (0, "")
    names = ["server", "kafka", "redis", "decider", "carts", "view", "cart_summary", "customer_spend"]
    assert [line.split()[0] for line in result.out.splitlines() if line] == names


def a_rebuild_is_planned_and_done_and_agrees_with_the_projector(up: Shell) -> None:
    def generations() -> dict[tuple[str, str], str]:
        rows = up("status", "--json").rows()
        return {(row["name"], row["phase"]): row["generation"] for row in rows if row["kind"] == "view"}

    (row,) = up("rebuild", "cart_summary", "--plan", "--json").rows()
    assert (row["view"], row["buckets"]) == ("cart_summary", 4)
    planned = up("rebuild", "--plan")
    assert "rebuild cart_summary, customer_spend from carts.events (4 partitions)" in planned.out, "one pass, one time"
    assert planned.out.endswith("in this process: 0 s expected, and 8 s with Spark\n")
    assert "starting Spark" not in planned.out + planned.err
    assert generations().keys() == {("cart_summary", "live"), ("customer_spend", "live")}
    result = up("rebuild", "--engine", "local", "--json").ok()
    assert [(row["view"], row["agreement"], row["swapped"]) for row in result.rows()] == [
        ("cart_summary", "equal", True),
        ("customer_spend", "equal", True),
    ]
    live = {view: id_ for (view, phase), id_ in generations().items() if phase == "live"}
    assert live == {row["view"]: row["generation"] for row in result.rows()}
    assert up("get", "customer_spend", "ada", "--json").rows()[0]["row"] == {"orders": 1, "total": "12.80"}
    up("rebuild", "cart_sumary").ended(2, "did you mean cart_summary?")


def a_fold_that_changes_is_found_and_can_be_accepted(up: Shell) -> None:
    lock = up.place / "leftfold.lock"
    locked = lock.read_text("utf-8")
    with changed(up, "projections/customer_spend.py", "row.orders + 1", "row.orders + 20"):
        result, accepted, after = up("check"), up("check", "--write"), up("check")
    lock.write_text(locked, "utf-8")
    assert (result.code, accepted.code, after.code) == (1, 0, 0)
    assert "error view customer_spend: its fold changed since leftfold.lock; raise version= to 2" in result.out


def topics_that_do_not_fit_stop_everything(up: Shell) -> None:
    with changed(up, "services/carts/app.py", "partitions=4", "partitions=16"):
        checked, run = up("check"), up.apart("run")
    assert (checked.code, run.code) == (1, 78)
    assert "topic carts.commands has 4 partitions, but app shop says partitions=16" in checked.out
    assert "has 4 partitions, but app shop says partitions=16" in run.err
    up("run", "cart_sumary").ended(2, "did you mean cart_summary")


def sigterm_is_no_failure_and_the_line_of_an_unknown_outcome_can_be_typed_again(
    up: Shell, run: subprocess.Popen[bytes]
) -> list[str]:
    run.terminate()
    assert run.wait(SECONDS) == 0
    assert {"starting", "serving", "following", "stopped"} <= {line["event"] for line in up.lines()}
    result = up("send", "AddItem", TEA.replace("c-1", "c-7"), "--timeout", "0.5")
    assert result.code == 75
    line = shlex.split(result.err[result.err.index("leftfold send") :].splitlines()[0])[1:]
    # The broker is given a second to say who owns it, which may be too short.
    wait_until(lambda: "no worker owns carts.commands" in up(*line, "--timeout", "0.5").err, "the reason")
    return line


def ctrl_c_stops_all_parts_in_order_and_no_command_line_has_the_password(
    up: Shell, started: Start, line: list[str]
) -> None:
    address = json.loads((up.place / ".leftfold" / "servers.json").read_text("utf-8"))["redis"]
    with closing(redis.Redis.from_url(address)) as server:
        server.acl_setuser("guest", True, False, ["+canary"], categories=["+@all"], keys=["*"], channels=["*"])
    run = started(up, ["run", "--plain-logs", f"--redis=redis://guest:canary@{address.rpartition('@')[2]}"])
    up.wait_until(run, lambda said: " serving " in said and " following " in said)
    parts = psutil.Process(run.pid).children()
    assert len(parts) == 2
    assert not [part.cmdline() for part in parts if "canary" in " ".join(part.cmdline())]
    assert up(*line, "--timeout", "240").code == 0
    assert [row["version"] for row in up("events", "carts", "c-7", "--json").rows()] == [1]
    run.send_signal(signal.SIGINT)
    assert run.wait(SECONDS) == 130
    assert psutil.wait_procs(parts, timeout=SECONDS)[1] == []
    assert "canary" not in up.said()
    assert "killed" not in up.said()
    assert up.said().splitlines()[-1].endswith("stopped")


def dev_uses_servers_that_run_already_and_leaves_them(up: Shell, started: Start) -> None:
    dev = started(up, ["dev", "--plain-logs"])
    up.wait_until(dev, lambda said: " serving " in said)
    dev.send_signal(signal.SIGINT)
    assert dev.wait(SECONDS) == 130
    assert "servers were there" in up.said()
    assert up("status").code == 0


def down_stops_and_says_so_and_then_nothing_runs(up: Shell) -> None:
    assert up("down").out.startswith("stopped; the data stays in ")
    assert up("down").out.startswith("nothing runs in ")
    up("status").ended(69, "kafka and redis: nothing runs in .leftfold; start it: leftfold up")
    up("run").ended(78, "no Kafka address: start servers with `leftfold up`")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterSet]:
    """Three masters with a replica each."""
    cluster = ClusterSet(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("_spark")
def test_a_project_lives_on_a_cluster(empty_servers: Addresses, cluster: ClusterSet, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.domains.ledger:app"\n')
    shell = Shell(tmp_path).at(Addresses(empty_servers.kafka, cluster.settings.url))

    def send(amount: str) -> str:
        sent = shell("send", "Move", json.dumps({"ledger": "l-1", "owner": "o/1", "amount": amount})).ok()
        return position_in(sent)

    def balance(position: str) -> str:
        result = shell("get", "ledger_summary", "l-1", "--after", position, "--timeout", "240", "--json").ok()
        return str(result.rows()[0]["row"]["balance"])

    with serving(shell):
        assert balance(send("2.00")) == "2.00"
        victim = cluster.owner(0)
        replica = cluster.replica_of(victim)
        cluster.wait_replicated(victim)
        victim.kill()
        position = send("3.00")
        cluster.wait_promoted(replica)
        assert balance(position) == "5.00"
        cluster.bring_back()
        for engine in ("local", "spark"):
            result = shell("rebuild", "--json", "--engine", engine).ok()
            assert [(row["agreement"], row["swapped"]) for row in result.rows()] == [("equal", True)] * 3
        assert balance(send("4.00")) == "9.00"
