"""`leftfold log` as a user types it: archive, verify, trim, and everything that folds goes on; SQL on both."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from leftfold.cli.log.group import log
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from tests.cli.shell import Shell, Typed
from tests.domains.ledger import app, histories, stranger
from tests.servers import Addresses
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
APP = ("--app", "tests.domains.ledger:app")
SECONDS = 240.0


@pytest.fixture(scope="module")
def project(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A project that names an archive, at work while it writes 400 events of history."""
    place = tmp_path_factory.mktemp("project")
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.domains.ledger:app"\narchive = "kept"\n')
    shell = Shell(place)
    shell.at(empty_servers)
    process = shell.start(["run"])
    try:
        shell.wait_until(process, lambda said: "following" in said and "serving" in said)
        with closing(KafkaClient(app.name, KafkaSettings(bootstrap_servers=empty_servers.kafka))) as client:
            client.send_many(list(histories(stranger(3), 400)), timeout=SECONDS)
        yield shell
    finally:
        process.terminate()
        process.wait(SECONDS)


def test_the_commands_have_help_with_examples(typed: Callable[..., Typed]) -> None:
    names = [command.name or command.callback.__name__ for command in log.registered_commands if command.callback]
    assert names == ["trace", "skip", "archive", "verify-archive", "trim", "sql"]
    for name in names:
        told = typed("log", name, "--help")
        assert told.code == 0
        assert "Examples:\n    leftfold log " in told.out


@pytest.fixture(scope="module")
def trimmed(project: Shell) -> Shell:
    """The project, once its log is archived, verified and trimmed away."""
    counted = len(project("events", "ledgers", "--from-start", "--json").rows())
    assert project("log", "trim", "ledgers", "--older-than", "0d", "--yes").code == 69
    done = project("log", "archive", "ledgers", "--json")
    assert done.code == 0, done.err
    assert done.rows()[0]["records"] == counted
    assert project("log", "archive", "ledgers").out.startswith("ledgers: 0 events archived")
    checked = project("log", "verify-archive", "ledgers", "--deep")
    assert (checked.code, checked.err) == (0, "")
    assert f"ledgers: {counted} events in 4 files: all is as it was written" in checked.out
    refused = project("log", "trim", "ledgers", "--older-than", "0d")
    assert refused.code == 2
    assert "say --yes" in refused.err
    done = project("log", "trim", "ledgers", "--older-than", "0d", "--yes", "--json")
    assert done.code == 0, done.err
    assert done.rows()[0]["records"] == counted
    assert len(project("events", "ledgers", "--from-start", "--json").rows()) == counted
    return project


def test_a_trimmed_log_is_folded_again(trimmed: Shell) -> None:
    rebuilt = trimmed("rebuild", "--engine", "local", "--json")
    assert rebuilt.code == 0, rebuilt.err
    assert [row["agreement"] for row in rebuilt.rows()] == ["equal", "equal", "equal"]
    assert trimmed("state", "verify").code == 0
    assert "hole" not in trimmed("check").out


def test_without_the_archive_the_same_commands_refuse(trimmed: Shell) -> None:
    for words in (("rebuild", "--engine", "local"), ("state", "verify"), ("events", "ledgers", "--from-start")):
        told = trimmed(*words, "--archive", "")
        assert told.code == 69, words
        assert "hole in the log: ledgers.events[" in told.err
        assert "--archive DIR" in told.err
    assert trimmed("events", "ledgers", "--archive", "").code == 0
    (trimmed.place / "kept").rename(trimmed.place / "away")
    try:
        told = trimmed("check")
        assert told.code == 1
        assert "topic ledgers.events: a hole in the log" in told.out
    finally:
        (trimmed.place / "away").rename(trimmed.place / "kept")


def test_a_damaged_archive_is_told_and_ends_with_3(trimmed: Shell) -> None:
    file = next((trimmed.place / "kept").glob("*/day=*/*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        told = trimmed("log", "verify-archive", "ledgers", "--json")
        assert told.code == 3
        (damage,) = told.rows()[0]["damages"]
        assert file.name in damage["path"]
        told = trimmed("rebuild", "by_tag", "--engine", "local")
        assert told.code == 69
        assert f"{file.name} has" in told.err
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trim", "ledgers"), "say --before POSITION|TIME or --older-than AGE"),
        (("trim", "ledgers", "--before", "x"), "neither a position nor a time"),
        (("trim", "ledgers", "--before", "2026-01-01"), "no time zone"),
        (("trim", "ledgers", "--before", "other.events[0:1]"), "a position in ledgers.events"),
        (("trim", "ledgers", "--older-than", "a year"), "looks like 30d"),
        (("archive", "ledger"), "did you mean ledgers?"),
        (("sql", "SELECT 1", "--csv", "--json"), "not both"),
        (("sql",), "which statement?"),
    ],
)
def test_what_cannot_be_meant_is_told(project: Shell, words: tuple[str, ...], said: str) -> None:
    told = project("log", *words)
    assert told.code == 2
    assert said in told.err


@pytest.fixture(scope="module")
def moved(project: Shell) -> int:
    """How many events of that type there are."""
    events = project("events", "ledgers", "--from-start", "--json").rows()
    return sum(row["type"] == "ledgers.Moved.v1" for row in events)


QUERY = "SELECT count(*) AS n, max(_time) AS at, CAST(1.50 AS DECIMAL(5, 2)) AS price FROM Moved"


@pytest.mark.usefixtures("_spark")
def test_sql_is_answered_as_json(project: Shell, moved: int) -> None:
    (row,) = project.here("log", "sql", QUERY, "--json").rows()
    assert (row["n"], row["price"]) == (moved, "1.50")


@pytest.mark.usefixtures("_spark")
def test_sql_is_answered_as_a_table(project: Shell, moved: int) -> None:
    head, _, row = project.here("log", "sql", QUERY).out.strip().splitlines()
    assert head.split() == ["n", "at", "price"]
    assert row.split()[0] == str(moved)
    assert row.split()[-1] == "1.50"


@pytest.mark.usefixtures("_spark")
def test_sql_is_answered_as_csv(project: Shell, moved: int) -> None:
    answered = project.here("log", "sql", "SELECT owner, amount FROM Moved", "--csv")
    rows = list(csv.DictReader(io.StringIO(answered.out)))
    assert len(rows) == moved
    assert set(rows[0]) == {"owner", "amount"}


@pytest.mark.usefixtures("_spark")
@pytest.mark.parametrize(
    ("statement", "said"),
    [("DROP TABLE Moved", "only questions are answered here"), ("SELECT x FROM nowhere", "there is no table nowhere")],
)
def test_what_is_no_query_is_refused(project: Shell, statement: str, said: str) -> None:
    told = project.here("log", "sql", statement)
    assert told.code == 1
    assert said in told.err


@pytest.mark.usefixtures("_spark")
@pytest.mark.parametrize(
    ("words", "lines", "why"),
    [
        (("SELECT id FROM range(10)", "--csv", "--limit", "3"), 4, "first 3 rows are shown: --limit 3 lets"),
        (
            ("SELECT repeat('x', 400000) FROM range(10)", "--json", "--max-mb", "1"),
            2,
            "2 rows are shown: --max-mb 1 lets",
        ),
    ],
)
def test_an_answer_that_is_cut_says_so_to_programs(
    project: Shell, words: tuple[str, ...], lines: int, why: str
) -> None:
    told = project.here("log", "sql", *words)
    assert (told.code, len(told.out.splitlines())) == (3, lines)
    assert why in told.err


@pytest.mark.usefixtures("_spark")
def test_a_table_that_is_cut_says_so(project: Shell) -> None:
    told = project.here("log", "sql", "SELECT id FROM range(10)", "--limit", "3")
    assert told.code == 0
    assert told.out.split()[-3:] == ["0", "1", "2"]
    assert "only the first 3 rows are shown: --limit 3 lets" in told.err


def test_statements_are_typed_one_after_another_on_a_terminal(project: Shell) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leftfold.cli", "log", "sql", "--json"]
    process = subprocess.Popen(
        command, cwd=project.place, env=project._environment, stdin=theirs, stdout=subprocess.PIPE, text=True
    )
    try:
        typed = (".tables", ".schema Moved", "SELECT count(*) AS n", "FROM Opened;", "DROP TABLE x;", ".what", ".quit")
        os.write(ours, "".join(f"{line}\n" for line in typed).encode())
        out = process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 0
    for said in ("Closed", "ledgers", "amount  decimal(38,10)"):
        assert said in out
    events = project("events", "ledgers", "--from-start", "--json").rows()
    opened = sum(row["type"] == "ledgers.Opened.v1" for row in events)
    assert json.dumps({"n": opened}, separators=(",", ":")) in out


@pytest.mark.faults
@pytest.mark.slow
def test_a_question_that_kills_spark_is_not_the_last_one(project: Shell, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leftfold.cli", "log", "sql", "--json"]
    out, errors = tmp_path / "out", tmp_path / "errors"
    with out.open("wb") as said, errors.open("wb") as err:
        environment = {**project._environment, "LEFTFOLD_SPARK_MEMORY": "512m", "LEFTFOLD_SPARK_MASTER": "local[1]"}
        process = subprocess.Popen(command, cwd=project.place, env=environment, stdin=theirs, stdout=said, stderr=err)

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
