"""`leftfold log` as a user types it: archive, verify, trim, and all that folds continues from it; SQL on both."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from leftfold import Command
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.parquet.manifest import Manifest
from tests.cli.shell import Shell, running, serving
from tests.cli.terminal import keys
from tests.domains.ledger import Move, app, histories, stranger
from tests.servers import Addresses, patient
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

SECONDS = 240.0
VIEWS = ("ledger_summary", "by_owner", "by_tag")
_places = {"dawn": "2000-01-01", "noon": "between two histories", "version": "l-3@4", "dusk": "2100-01-01"}
"""Places of the log at which the views are built while all of it is there; `run` fills in when noon was."""
APP = '[tool.leftfold]\napp = "tests.domains.ledger:app"\n'
CORRECTED = """
from dataclasses import replace

from leftfold import App, FoldView
from tests.domains.ledger import LedgerEvent, Moved, Summary, summarise


def corrected(row: Summary | None, event: LedgerEvent) -> Summary | None:
    if isinstance(event, Moved):
        row = row or Summary(event.owner)
        return replace(row, moves=row.moves + 1, balance=row.balance + event.amount, last=event.tags or None)
    return summarise(row, event)


views = [FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=corrected)]
app = App("ledgers", partitions=4, views=views)
"""


@pytest.fixture(scope="module")
def project(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A project that names an archive."""
    place = tmp_path_factory.mktemp("project")
    (place / "pyproject.toml").write_text(f'{APP}archive = "kept"\n')
    return Shell(place).at(empty_servers)


@pytest.fixture(scope="module")
def bare(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """The same App as a project that names none, and its code with a corrected fold."""
    place = tmp_path_factory.mktemp("bare")
    (place / "pyproject.toml").write_text(APP)
    (place / "corrected.py").write_text(CORRECTED)
    return Shell(place).at(empty_servers)


@pytest.fixture(scope="module")
def kept(project: Shell) -> list[str]:
    """How the archive is named on the command line."""
    return ["--archive", str(project.place / "kept")]


@pytest.fixture(scope="module")
def run(project: Shell, empty_servers: Addresses) -> Iterator[subprocess.Popen[bytes]]:
    """`leftfold run`, once there is some history."""
    with serving(project) as process:
        send(empty_servers, histories(stranger(3), 100))
        _places["noon"] = datetime.now(UTC).isoformat()
        poisoned = [Move(ledger="p", owner="o/9", amount=Decimal(amount)) for amount in ("1.00", "66.60", "2.00")]
        send(empty_servers, [*histories(stranger(4), 50), *poisoned])
        yield process


def send(servers: Addresses, commands: Iterable[Command]) -> None:
    with closing(KafkaClient(app.name, patient(servers.kafka))) as client:
        client.send_many(list(commands), timeout=SECONDS)


@pytest.fixture(scope="module")
def trimmed(
    project: Shell, bare: Shell, kept: list[str], run: subprocess.Popen[bytes], empty_servers: Addresses
) -> Shell:
    """The project once its log is archived, verified and trimmed away, and one more event is written."""
    for name, place in _places.items():
        bare("rebuild", "--engine", "local", "--as-of", place, "--name", f"{name}_before", "--anyway").ok()
    counted = len(bare("events", "ledgers", "--from-start", "--json").rows())
    assert project("log", "trim", "ledgers", "--older-than", "0d", "--yes").code == 69
    done = project("log", "archive", "ledgers", "--json").ok()
    assert done.rows()[0]["records"] == counted
    assert project("log", "archive", "ledgers").out.startswith("ledgers: 0 events archived")
    checked = project("log", "verify-archive", "ledgers", "--deep")
    assert (checked.code, checked.err) == (0, "")
    # A file holds a day of a partition, and this may be written around midnight.
    assert re.search(rf"ledgers: {counted} events in \d+ files: all is as it was written", checked.out), checked.out
    trim = ("log", "trim", "ledgers", "--older-than", "0d", *kept)
    bare(*trim).ended(2, "say --yes")
    done = bare(*trim, "--yes", "--json").ok()
    assert done.rows()[0]["records"] == counted
    assert f"so may `leftfold run`; name it once: archive = '{kept[1]}' under [tool.leftfold]" in done.err
    assert len(project("events", "ledgers", "--from-start", "--json").rows()) == counted
    send(empty_servers, [Move(ledger="l-3", owner="o/3", amount=Decimal("1.00"))])
    return project


def test_a_trimmed_log_is_verified_and_folded_again(trimmed: Shell, bare: Shell, kept: list[str]) -> None:
    wait_until(lambda: "view ledger_summary parks p" in bare("status").err, "the projector to park a row")
    result = bare("verify", *kept, "--json")
    assert (result.code, [row["equal"] for row in result.rows()]) == (0, [True] * 3), result.out + result.err
    bare("verify", "by_owner", "--generation", "noon_before", *kept).ok()
    rebuilt = trimmed("rebuild", "--engine", "local", "--json").ok()
    assert [row["agreement"] for row in rebuilt.rows()] == ["equal", "equal", "equal"]
    assert trimmed("state", "verify").code == 0
    assert "gap in the log" not in trimmed("check").out


@pytest.mark.parametrize("name", ["dawn", "noon", "version"])
def test_a_view_as_of_a_place_is_what_it_was_before_the_trim(
    trimmed: Shell, bare: Shell, kept: list[str], name: str
) -> None:
    words = ("--as-of", _places[name], "--name", f"{name}_after", "--anyway", *kept, "--json")
    built = bare("rebuild", "--engine", "local", *words).ok()
    rows = {row["view"]: row["rows"] for row in built.rows()}
    assert rows.keys() == set(VIEWS)
    assert {bool(count) for count in rows.values()} == {name != "dawn"}
    assert (f"{_places[name]}: nothing of ledgers was appended before that" in built.err) is (name == "dawn")
    for view in VIEWS:
        same = bare("diff", view, "--between", f"{name}_before", f"{name}_after", "--json")
        assert (same.code, same.rows()[0]["equal"]) == (0, rows[view]), same.out + same.err
        assert bare("diff", view, "--between", f"{name}_before", "dusk_before").code == 3, "that was another place"
    if name == "version":
        steps = bare("explain", "ledger_summary@version_after", "l-3", *kept, "--json").rows()
        assert [step["version"] for step in steps] == [1, 2, 3, 4], "the last event of its stream"


@pytest.mark.parametrize(
    "words",
    [
        "rebuild --engine local",
        "state verify",
        "events ledgers --from-start",
        "verify",
        "explain ledger_summary l-3",
        "retry ledger_summary p --app corrected:app",
        "rebuild by_owner --engine spark",
        "rebuild by_owner --engine spark --plan",
        *(f"rebuild by_owner --engine local --name guessed --as-of {name}" for name in ("dawn", "noon", "version")),
    ],
)
def test_without_the_archive_no_command_guesses(trimmed: Shell, bare: Shell, words: str) -> None:
    result = bare(*(_places.get(word, word) for word in words.split())).ended(
        69, "gap in the log: ledgers.events[", "--archive DIR"
    )
    if "spark" in words:
        assert "starting Spark" not in result.err
        gone = re.search(r"ledgers\.events\[\d\] no longer holds offsets 0 to (\d+)", result.err)
        assert gone is not None, result
        assert int(gone[1]) > 0, "all of them, not the first one"


def test_a_gap_is_looked_for_in_the_archive_and_an_archive_can_be_left_out(
    trimmed: Shell, bare: Shell, kept: list[str]
) -> None:
    assert trimmed("events", "ledgers", "--archive", "").code == 0
    assert trimmed("rebuild", "--engine", "local", "--archive", "").code == 69
    result = bare("check")
    assert (result.code, "topic ledgers.events: a gap in the log" in result.out) == (1, True), result.out
    assert "gap in the log" not in bare("check", *kept).out


def test_an_older_copy_of_the_archive_lacks_what_was_trimmed(trimmed: Shell, tmp_path: Path) -> None:
    older = shutil.copytree(trimmed.place / "kept", tmp_path / "older")
    (file,) = older.rglob("*.json")
    manifest = Manifest.from_json(file.read_bytes(), file.name)
    file.write_bytes(replace(manifest, spans=tuple(span for span in manifest.spans if span.partition)).to_json())
    result = trimmed("log", "verify-archive", "ledgers", "--deep", "--archive", str(older))
    lacking = re.search(r"\[0\] offsets 0 to \d+ are neither in the archive nor in the topic", result.out + result.err)
    assert (result.code, bool(lacking)) == (3, True)


def test_a_damaged_archive_is_reported_and_ends_with_3(trimmed: Shell) -> None:
    file = next((trimmed.place / "kept").glob("*/day=*/*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        result = trimmed("log", "verify-archive", "ledgers", "--json")
        assert result.code == 3
        (damage,) = result.rows()[0]["damages"]
        assert file.name in damage["path"]
        trimmed("rebuild", "by_tag", "--engine", "local").ended(69, f"{file.name} has")
    finally:
        file.write_bytes(whole)


def test_explain_shows_events_that_only_the_archive_has(trimmed: Shell, bare: Shell, kept: list[str]) -> None:
    events = bare("events", "ledgers", "l-3", "--from-start", *kept, "--json").rows()
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))

    def shown() -> bool:
        result = bare("explain", "ledger_summary", "l-3", *kept, "--json").ok()
        return [step["version"] for step in result.rows()] == [event["version"] for event in events]

    wait_until(shown, "the projector to fold the last event")


def test_promote_rollback_and_retry_read_the_archive(trimmed: Shell, bare: Shell, kept: list[str]) -> None:
    bare("rebuild", "by_owner", "--engine", "local", "--hold", *kept).ok()
    bare("promote", "by_owner", "--archive", "carrier-pigeon://loft").ended(78, "no file system that pyarrow knows")
    for command in ("promote", "rollback"):
        bare(command, "by_owner", *kept).ok()
    still = bare("retry", "ledger_summary", *kept)
    assert (still.code, "cannot digest" in still.out) == (1, True), still.out + still.err
    result = bare("retry", "ledger_summary", "p", "--app", "corrected:app", "--json", *kept)
    assert (result.code, result.rows()[0]["freed"]) == (0, ["p"]), result.err
    assert bare("get", "ledger_summary", "p", "--json").rows()[0]["row"]["balance"] == "69.60"
    assert bare("verify", "ledger_summary", "--app", "corrected:app", *kept).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trim", "ledgers"), "say --before POSITION|TIME or --older-than AGE"),
        (("trim", "ledgers", "--before", "x"), "'x' is no time; write 2026-01-01T00:00:00Z"),
        (("trim", "ledgers", "--before", "2026-01-01"), "no time zone"),
        (("trim", "ledgers", "--before", "other.events[0:1]"), "a position in ledgers.events"),
        (("trim", "ledgers", "--older-than", "a year"), "'a year' is no time"),
        (("archive", "ledger"), "did you mean ledgers?"),
        (("sql", "SELECT 1", "--csv", "--json"), "not both"),
        (("sql",), "which statement?"),
    ],
)
def test_what_cannot_be_meant_is_refused(trimmed: Shell, words: tuple[str, ...], said: str) -> None:
    trimmed("log", *words).ended(2, said)


@pytest.fixture(scope="module")
def counts(trimmed: Shell) -> Counter[str]:
    """How many events of each type there are."""
    return Counter(row["type"] for row in trimmed("events", "ledgers", "--from-start", "--json").rows())


@pytest.mark.usefixtures("_spark")
def test_sql_is_answered_as_json_as_a_table_and_as_csv(trimmed: Shell, counts: Counter[str]) -> None:
    query = "SELECT count(*) AS n, max(_time) AS at, CAST(1.50 AS DECIMAL(5, 2)) AS price FROM Moved"
    moved = counts["ledgers.Moved.v1"]
    (found,) = trimmed("log", "sql", query, "--json").rows()
    assert (found["n"], found["price"]) == (moved, "1.50")
    head, _, row = trimmed("log", "sql", query).out.strip().splitlines()
    assert head.split() == ["n", "at", "price"]
    assert (row.split()[0], row.split()[-1]) == (str(moved), "1.50")
    rows = list(csv.DictReader(io.StringIO(trimmed("log", "sql", "SELECT owner, amount FROM Moved", "--csv").out)))
    assert (len(rows), set(rows[0])) == (moved, {"owner", "amount"})


@pytest.mark.usefixtures("_spark")
@pytest.mark.parametrize(
    ("statement", "said"),
    [("DROP TABLE Moved", "only questions are answered here"), ("SELECT x FROM nowhere", "there is no table nowhere")],
)
def test_what_is_no_query_is_refused(trimmed: Shell, statement: str, said: str) -> None:
    trimmed("log", "sql", statement).ended(1, said)


@pytest.mark.usefixtures("_spark")
@pytest.mark.parametrize(
    ("words", "code", "lines", "why"),
    [
        (("SELECT id FROM range(10)", "--csv", "--limit", "3"), 3, 4, "first 3 rows are shown: --limit 3 lets"),
        (("SELECT id FROM range(10)", "--limit", "3"), 0, 5, "only the first 3 rows are shown: --limit 3 lets"),
        (
            ("SELECT repeat('x', 400000) FROM range(10)", "--json", "--max-mb", "1"),
            3,
            2,
            "2 rows are shown: --max-mb 1 lets",
        ),
    ],
)
def test_an_answer_that_is_cut_says_so_and_programs_do_not_take_it_for_whole(
    trimmed: Shell, words: tuple[str, ...], code: int, lines: int, why: str
) -> None:
    result = trimmed("log", "sql", *words)
    assert (result.code, len(result.out.strip().splitlines())) == (code, lines)
    assert why in result.err


@pytest.mark.usefixtures("_spark")
def test_statements_are_typed_one_after_another_on_a_terminal(trimmed: Shell, counts: Counter[str]) -> None:
    lines = (".tables", ".schema Moved", "SELECT count(*) AS n", "FROM Opened;", "DROP TABLE x;", ".what", ".quit")
    with keys("".join(f"{line}\n" for line in lines)) as terminal:
        result = trimmed("log", "sql", "--json", stdin=terminal)
    assert result.code == 0, result.err
    for said in ("Closed", "ledgers", "amount  decimal(38,10)", f'{{"n":{counts["ledgers.Opened.v1"]}}}'):
        assert said in result.out
    assert "error: only questions are answered here" in result.err
    assert "'.what' is neither .tables, nor" in result.err


@pytest.mark.faults
@pytest.mark.slow
def test_a_question_that_kills_spark_is_not_the_last_one(trimmed: Shell, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leftfold.cli", "log", "sql", "--json"]
    out, errors = tmp_path / "out", tmp_path / "errors"
    with out.open("wb") as said, errors.open("wb") as err:
        environment = {**trimmed._environment, "LEFTFOLD_SPARK_MEMORY": "512m", "LEFTFOLD_SPARK_MASTER": "local[1]"}
        process = subprocess.Popen(command, cwd=trimmed.place, env=environment, stdin=theirs, stdout=said, stderr=err)

    def wait_said(file: Path, word: str, times: int = 1) -> None:
        wait_until(
            lambda: file.read_text().count(word) >= times or process.poll() is not None,
            lambda: f"{word}: {errors.read_text()}",
            SECONDS,
        )

    try:
        os.write(ours, b"SELECT max(length(repeat('x', 1500000000 + CAST(id AS INT)))) AS n FROM range(1);\n")
        wait_said(errors, "error: Spark has died or run out of memory; ask for less")
        os.write(ours, b"SELECT count(*) AS n FROM range(7);\n")
        wait_said(out, '{"n":7}')
        java = next(one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        java.kill()
        wait_until(lambda: java.status() == psutil.STATUS_ZOMBIE, "Java to end", SECONDS)
        os.write(ours, b".schema Moved\nSELECT count(*) AS n FROM range(9);\n.quit\n")
        assert process.wait(SECONDS) == 0, errors.read_text()
        assert '{"n":9}' in out.read_text(), errors.read_text()
        assert errors.read_text().count("starting Spark again") == 2
        assert "Traceback" not in errors.read_text()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.faults
def test_run_continues_from_what_was_trimmed_meanwhile(
    bare: Shell, trimmed: Shell, kept: list[str], run: subprocess.Popen[bytes]
) -> None:
    """The last test, since it ends the service: events come and are trimmed away while no projector runs."""
    run.terminate()
    run.wait(SECONDS)
    decider, without, whole = (bare.beside(name) for name in ("decider", "without", "whole"))
    without._environment |= {"LEFTFOLD_ARCHIVE_DIR": kept[1]}
    move = json.dumps({"ledger": "l-3", "owner": "o/3", "amount": "5.00"})
    with running(decider, "run", "ledgers"):
        # What came after the last decision that its state holds is to be read from the log, and was trimmed.
        wait_until(lambda: "gap in the log: ledgers.events[" in decider.said(), "the worker to refuse")
        assert '"left"' not in decider.said(), "it never held anything, and tries again every few seconds"
    with running(decider, "run", "ledgers", *kept):
        wait_until(lambda: "serving" in decider.said(), "the worker")
        sent = [bare("send", "Move", move, "--json") for _ in range(2)][-1]
        for words in (
            ("archive", "ledgers", "--to", kept[1]),
            ("trim", "ledgers", "--older-than", "0d", "--yes", *kept),
        ):
            assert bare("log", *words).code == 0
        after = ("--after", json.dumps(sent.rows()[0]["position"]), "--timeout")
        assert set(behind(bare).values()) == {None}
        result = bare("status").err
        assert (
            "view by_owner stands before the start of what its topic still holds: a gap in the log: ledgers" in result
        )
        assert "--archive DIR" in result
        assert all(seconds is not None and seconds > 0 for seconds in behind(bare, *kept).values())
        assert "stands before the start" not in bare("status", *kept).err
        with running(without, "run", "by_owner", "--archive", ""):
            wait_until(lambda: "gap in the log: ledgers.events[" in without.said(), "the projector to refuse")
            assert bare("get", "by_owner", "o/3", *after, "1").code == 4
        with running(whole, "run", "by_owner", *kept) as process:
            bare("get", "by_owner", "o/3", *after, "60").ok()
            assert bare("verify", "by_owner", *kept).code == 0
            parts = psutil.Process(process.pid).children()
            assert parts
            assert not [part for part in parts if kept[1] in " ".join(part.cmdline())], "a URI may hold a password"


def behind(shell: Shell, *options: str) -> dict[str, float | None]:
    """How many seconds each view is behind; `status` must not fail."""
    result = shell("status", "--json", *options).ok()
    return {row["name"]: row["behind"] for row in result.rows() if row["kind"] == "view" and row["live"]}
