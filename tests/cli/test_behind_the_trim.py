"""The whole past is in an archive that no setting names: each command that reads it takes `--archive`, or refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from tests.cli.shell import Shell
from tests.domains.ledger import Move, app, histories, stranger
from tests.servers import Addresses

pytestmark = [pytest.mark.servers, pytest.mark.faults]

Wait = Callable[[Callable[[], object], str], None]
ROOT = Path(__file__).parents[2]
SECONDS = 240.0
KEPT = ("--archive", "kept")
VIEWS = ("ledger_summary", "by_owner", "by_tag")
MENDED = """
from dataclasses import replace

from leftfold import App, FoldView
from tests.domains.ledger import LedgerEvent, Moved, Summary, summarise


def mended(row: Summary | None, event: LedgerEvent) -> Summary | None:
    if isinstance(event, Moved):
        row = row or Summary(event.owner)
        return replace(row, moves=row.moves + 1, balance=row.balance + event.amount, last=event.tags or None)
    return summarise(row, event)


app = App("ledgers", partitions=4, views=[FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=mended)])
"""


@pytest.fixture(scope="module")
def shell(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A project that names no archive."""
    place = tmp_path_factory.mktemp("project")
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.domains.ledger:app"\n')
    (place / "mended.py").write_text(MENDED)
    shell = Shell(place)
    shell.at(empty_servers)
    return shell


@pytest.fixture(scope="module")
def run(shell: Shell) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run`, at work."""
    process = shell.start(["run"])
    try:
        shell.wait_until(process, lambda said: "following" in said and "serving" in said)
        yield process
    finally:
        end(process)


@pytest.fixture(scope="module")
def places(empty_servers: Addresses, shell: Shell, run: subprocess.Popen[bytes]) -> dict[str, str]:
    """Some places of the log, at each of which the views were built while all of it was there.

    Two histories are written; then everything is archived and trimmed away, and one more event is written.
    """
    with closing(KafkaClient(app.name, KafkaSettings(bootstrap_servers=empty_servers.kafka))) as client:
        client.send_many(list(histories(stranger(3), 300)), timeout=SECONDS)
        noon = datetime.now(UTC).isoformat()
        client.send_many(list(histories(stranger(4), 300)), timeout=SECONDS)
        poisoned = [Move(ledger="p", owner="o/9", amount=Decimal(amount)) for amount in ("1.00", "66.60", "2.00")]
        client.send_many(poisoned, timeout=SECONDS)
        found = {"dawn": "2000-01-01", "noon": noon, "version": "l-3@4", "dusk": "2100-01-01"}
        for name, place in found.items():
            built = shell("rebuild", "--engine", "local", "--as-of", place, "--name", f"{name}_before", "--anyway")
            assert built.code == 0, built.err
        archive(shell)
        client.send_many([Move(ledger="l-3", owner="o/3", amount=Decimal("1.00"))], timeout=SECONDS)
    return found


def archive(shell: Shell) -> None:
    """Archives everything and trims it away."""
    for words in (("archive", "ledgers", "--to", "kept"), ("trim", "ledgers", "--older-than", "0d", "--yes", *KEPT)):
        done = shell("log", *words)
        assert done.code == 0, done.err
    assert "so may `leftfold run`; name it once: archive = 'kept' under [tool.leftfold]" in done.err


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(SECONDS)


@pytest.mark.parametrize("name", ["dawn", "noon", "version"])
def test_a_view_as_of_a_place_is_what_it_was_before_the_trim(shell: Shell, places: dict[str, str], name: str) -> None:
    words = ("--as-of", places[name], "--name", f"{name}_after", "--anyway", *KEPT, "--json")
    built = shell("rebuild", "--engine", "local", *words)
    assert built.code == 0, built.err
    rows = {row["view"]: row["rows"] for row in built.rows()}
    assert rows.keys() == set(VIEWS)
    assert {bool(count) for count in rows.values()} == {name != "dawn"}
    assert (f"{places[name]}: nothing of ledgers was appended before that" in built.err) is (name == "dawn")
    for view in VIEWS:
        same = shell("diff", view, "--between", f"{name}_before", f"{name}_after", "--json")
        assert (same.code, same.rows()[0]["equal"]) == (0, rows[view]), same.out + same.err
        assert shell("diff", view, "--between", f"{name}_before", "dusk_before").code == 3, "that was another place"


def test_a_version_is_the_last_event_of_its_stream(shell: Shell, places: dict[str, str]) -> None:
    steps = shell("explain", "ledger_summary@version_after", "l-3", *KEPT, "--json").rows()
    assert [step["version"] for step in steps] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["dawn", "noon", "version"])
def test_without_the_archive_no_place_is_guessed(shell: Shell, places: dict[str, str], name: str) -> None:
    refused(shell, "rebuild", "by_owner", "--engine", "local", "--as-of", places[name], "--name", "guessed")


@pytest.mark.parametrize("words", [(), ("--plan",)], ids=str)
def test_what_is_gone_is_named_before_spark_is_started(
    shell: Shell, places: dict[str, str], words: tuple[str, ...]
) -> None:
    refused(shell, "rebuild", "by_owner", "--engine", "spark", *words)
    told = shell("rebuild", "by_owner", "--engine", "spark", *words).err
    assert "starting Spark" not in told
    gone = re.search(r"ledgers\.events\[\d\] no longer holds offsets 0 to (\d+)", told)
    assert gone is not None, told
    assert int(gone[1]) > 0, "all of them, not the first one"


def test_verify_folds_archive_and_topic(shell: Shell, places: dict[str, str], wait_until: Wait) -> None:
    wait_until(lambda: "view ledger_summary parks p" in shell("status").err, "the tail to park a row")
    told = shell("verify", *KEPT, "--json")
    assert (told.code, [row["equal"] for row in told.rows()]) == (0, [True] * 3), told.out + told.err
    pinned = shell("verify", "by_owner", "--generation", "noon_before", *KEPT)
    assert pinned.code == 0, pinned.err
    refused(shell, "verify")


def test_explain_shows_events_that_only_the_archive_has(shell: Shell, places: dict[str, str], wait_until: Wait) -> None:
    events = shell("events", "ledgers", "l-3", "--from-start", *KEPT, "--json").rows()
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))

    def shown() -> bool:
        told = shell("explain", "ledger_summary", "l-3", *KEPT, "--json")
        assert told.code == 0, told.err
        return [step["version"] for step in told.rows()] == [event["version"] for event in events]

    wait_until(shown, "the tail to fold the last event")
    refused(shell, "explain", "ledger_summary", "l-3")


def test_check_looks_for_the_hole_in_the_archive(shell: Shell, places: dict[str, str]) -> None:
    assert "hole in the log: ledgers.events[" in shell("check").out
    assert "hole" not in shell("check", *KEPT).out


def test_promote_and_rollback_read_the_archive(shell: Shell, places: dict[str, str]) -> None:
    held = shell("rebuild", "by_owner", "--engine", "local", "--hold", *KEPT)
    assert held.code == 0, held.err
    nowhere = shell("promote", "by_owner", "--archive", "carrier-pigeon://loft")
    assert (nowhere.code, "no file system that pyarrow knows" in nowhere.err) == (78, True), nowhere.err
    for command in ("promote", "rollback"):
        done = shell(command, "by_owner", *KEPT)
        assert done.code == 0, done.err


def test_retry_folds_a_row_from_what_only_the_archive_has(shell: Shell, places: dict[str, str]) -> None:
    still = shell("retry", "ledger_summary", *KEPT)
    assert (still.code, "cannot digest" in still.out) == (1, True), still.out + still.err
    mended = ("retry", "ledger_summary", "p", "--app", "mended:app", "--json")
    refused(shell, *mended)
    told = shell(*mended, *KEPT)
    assert (told.code, told.rows()[0]["freed"]) == (0, ["p"]), told.err
    assert shell("get", "ledger_summary", "p", "--json").rows()[0]["row"]["balance"] == "69.60"
    assert shell("verify", "ledger_summary", "--app", "mended:app", *KEPT).code == 0


def test_run_goes_on_from_what_was_trimmed_meanwhile(
    shell: Shell, places: dict[str, str], run: subprocess.Popen[bytes], wait_until: Wait
) -> None:
    """The last test, since it ends the service: events come and are trimmed away while no projector runs."""
    end(run)
    decider, bare, whole = (another(shell, name) for name in ("decider", "bare", "whole"))
    bare._environment |= {"LEFTFOLD_ARCHIVE_DIR": "kept"}
    move = json.dumps({"ledger": "l-3", "owner": "o/3", "amount": "5.00"})
    with running(decider, "ledgers"):
        # What came after the last decision that its state tells of is to be read from the log, and was trimmed.
        wait_until(lambda: "hole in the log: ledgers.events[" in decider.said(), "the worker to refuse")
        assert '"left"' not in decider.said(), "it never held anything, and tries again every few seconds"
    with running(decider, "ledgers", *KEPT):
        wait_until(lambda: "serving" in decider.said(), "the worker")
        sent = [shell("send", "Move", move, "--json") for _ in range(2)][-1]
        archive(shell)
        after = ("--after", json.dumps(sent.rows()[0]["position"]), "--timeout")
        assert set(behind(shell).values()) == {None}
        told = shell("status").err
        assert "view by_owner stands before the start of what its topic still holds: a hole in the log: ledgers" in told
        assert "--archive DIR" in told
        assert all(seconds is not None and seconds > 0 for seconds in behind(shell, *KEPT).values())
        assert "stands before the start" not in shell("status", *KEPT).err
        with running(bare, "by_owner", "--archive", ""):
            wait_until(lambda: "hole in the log: ledgers.events[" in bare.said(), "the tail to refuse")
            assert shell("get", "by_owner", "o/3", *after, "1").code == 4
        with running(whole, "by_owner", *KEPT) as process:
            got = shell("get", "by_owner", "o/3", *after, "60")
            assert got.code == 0, got.err + whole.said()
            assert shell("verify", "by_owner", *KEPT).code == 0
            parts = psutil.Process(process.pid).children()
            assert parts
            assert not [part for part in parts if "kept" in " ".join(part.cmdline())], "a URI may hold a password"


def behind(shell: Shell, *options: str) -> dict[str, float | None]:
    """How many seconds each view is behind; `status` must not fail."""
    told = shell("status", "--json", *options)
    assert told.code == 0, told.err
    return {row["name"]: row["behind"] for row in told.rows() if row["kind"] == "view" and row["live"]}


def another(shell: Shell, name: str) -> Shell:
    """The same project, with a log of its own."""
    other = Shell(shell.place)
    other._environment, other.log = dict(shell._environment), shell.place / f"{name}.log"
    return other


@contextmanager
def running(shell: Shell, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run` while the block does."""
    process = shell.start(["run", *words])
    try:
        yield process
    finally:
        end(process)


def refused(shell: Shell, *words: str) -> None:
    """Without the option the command says what is missing and what to type."""
    told = shell(*words)
    assert told.code == 69, (words, told.out, told.err)
    assert "hole in the log: ledgers.events[" in told.err
    assert "--archive DIR" in told.err
