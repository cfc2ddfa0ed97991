"""Help, and errors: quick, complete, with examples, the right exit code and the command to type next."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import typer

from leftfold import (
    ConfigurationError,
    ContractError,
    Fenced,
    InfrastructureError,
    LeftfoldError,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)
from leftfold.cli import options
from leftfold.cli.main import COMMANDS as SECTIONS
from leftfold.cli.main import _of_configuration, app, tell, value_in
from leftfold.cli.options import note_options
from leftfold.engine.views import projection_writer as writer
from leftfold.runtime.project import Usage, unknown
from leftfold.runtime.telemetry_export import parts_directory
from tests.cli.shell import ROOT, Shell, Typing, parse_words

COMMANDS = {name for section in SECTIONS.values() for name in section}
HEAVY = ("confluent_kafka", "pydantic_settings", "pyspark", "redis", "rich", "structlog")
TOUR = {"new", "dev", "up", "down", "status", "run", "send", "events", "get", "rebuild", "check"}
BELLS = "tests.cli.guild:app"
SPEC = "shop.booking:app"


def commands() -> dict[str, list[str]]:
    """All commands, each with those below it."""
    group = typer.main.get_command(app)
    found = {name: group.get_command(None, name) for name in sorted(COMMANDS)}  # type: ignore[attr-defined]  # click's
    return {name: list(getattr(command, "commands", ())) for name, command in found.items()}


def test_every_command_has_help_with_examples_and_no_sentence_of_a_list_is_cut(
    typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert COMMANDS >= TOUR
    below = commands()
    assert below["log"] == ["trace", "skip", "archive", "verify-archive", "trim", "sql"]
    for words in (f"{name} {one}".strip() for name, within in below.items() for one in within or [""]):
        result = typed(*words.split(), "--help").ok()
        assert f"Usage: leftfold {words}" in result.out
        assert f"Examples:\n    leftfold {words}" in result.out
    for words in ("", *(name for name, within in below.items() if within)):
        listed = typed(*words.split(), "--help").out
        assert not [line for line in listed.splitlines()[1:] if line.endswith("...")]
        assert max(map(len, listed.splitlines())) <= 80


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    script = f"""
import sys
from leftfold.cli.main import run
assert run(["--help"]) == 0
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    assert Shell(tmp_path).python("-c", script).err.strip() == "[]"


def test_commands_on_the_log_need_no_client_of_redis(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["redis"] = None
from leftfold.cli.main import run
print({run([name, "--help"]) for name in ("dead", "events", "log", "reactions", "send", "timers")}, file=sys.stderr)
"""
    assert Shell(tmp_path).python("-c", script).err.strip() == "{0}"


def test_a_reader_who_has_left_is_not_complained_about(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command, environment = [sys.executable, "-m", "leftfold.cli", "--help"], Shell(tmp_path)._environment
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr.lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sennd",), "Did you mean 'send'?"),
        (("events", "baskets", "--tial", "3"), "help: leftfold events --help"),
        (("log", "trace", ""), "error: whose trace? give the id of a command"),
        (("retry", "heralt", "--app", BELLS), "no view or reaction in app guild called 'heralt'; did you mean herald?"),
        (("retry", "heralt", "--app", BELLS), "known: herald, mute, wound"),
        (("run", "wound", "--trigger", "5", "--app", BELLS), "say --engine spark"),
        (("run", "--metrics", "nowhere", "--app", BELLS), "it is no HOST:PORT"),
    ],
)
def test_a_slip_is_met_with_what_to_type(typed: Typing, words: tuple[str, ...], said: str) -> None:
    result = typed(*words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


def test_the_version_is_printed(typed: Typing) -> None:
    result = typed("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("leftfold 0.")


def test_options_have_the_engines_defaults() -> None:
    assert options.MAX_PARKED == writer.MAX_PARKED


def test_the_exit_codes_of_the_help_are_those_of_the_page_about_them(typed: Typing) -> None:
    result = re.findall(r"(\d+)\s", typed("--help").out.partition("Exit codes:")[2])
    table = (ROOT / "docs" / "settings.md").read_text("utf-8").partition("## Exit codes")[2]
    assert result == re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert {"0", "1", "2", "3", "4", "69", "75", "78", "130", "141"} == set(result)


@pytest.mark.parametrize(
    "codes", ["diff 3", "explain 3", "get 4", "log verify-archive 3", "rebuild 3", "state verify 3", "verify 34"]
)
def test_a_command_that_ends_with_3_or_4_says_when(typed: Typing, codes: str) -> None:
    *words, each = codes.split()
    result = " ".join(typed(*words, "--help").out.split())
    assert all(re.search(rf"Exit code ({code} |[^.]*, {code} )when", result) for code in each), result


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Usage("?"), 2),
        (ContractError("?"), 1),
        (ViewNotBuilt("?"), 1),
        (OutcomeUnknown("id"), 1),
        (StaleViewError("?"), 4),
        (InfrastructureError("?"), 69),
        (Fenced("?"), 75),
        (ConfigurationError("?"), 78),
        (KeyError("?"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


def test_the_notes_of_an_error_are_printed_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A rebuild whose server was lost is resumed by an operator who reads how."""
    error = InfrastructureError("redis at r:6379 is not reachable")
    error.add_note("what is done of it is kept; to resume it: leftfold rebuild v")
    assert tell(error, arguments=["rebuild", "--app", SPEC]) == 69
    assert capsys.readouterr().err == (
        "error: redis at r:6379 is not reachable\n"
        "  what is done of it is kept; to resume it: leftfold rebuild v\n"
        f"for these commands: export LEFTFOLD_APP={SPEC}\n"
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LEFTFOLD_LOCAL_KAFKA_PORT", "abc", "the settings of Local are wrong: LEFTFOLD_LOCAL_KAFKA_PORT: "),
        ("LEFTFOLD_LOCAL_KAFKA_JVM", "-Xint", 'parsing value for field "kafka_jvm"'),
        ("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "-1", "the settings of Kafka are wrong: LEFTFOLD_KAFKA_REQUEST_TIMEOUT: "),
    ],
)
def test_a_wrong_setting_in_the_environment_is_named(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    words = ("down",) if "LOCAL" in variable else ("events", "bells")
    result = typed(*words).ended(ConfigurationError.exit_code, message)
    assert len(result.err.splitlines()) == 1


def test_a_directory_that_cannot_be_written_is_named(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEFTFOLD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/sys/leftfold")  # not even root may make directories there
    monkeypatch.delenv("LEFTFOLD_JARS", raising=False)
    result = typed("up").ended(ConfigurationError.exit_code, "error: /sys/leftfold: ", "(XDG_CACHE_HOME is that of")
    assert len(result.err.splitlines()) == 1


def test_a_machine_without_a_temporary_directory_is_shown_the_variable_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(FileNotFoundError) as caught, parts_directory():
        pass
    result = str(_of_configuration(caught.value))
    assert result == "No usable temporary directory found in []; set TMPDIR to a directory that this user may write"


def test_an_output_that_is_read_no_further_ends_with_its_own_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([sys.executable, "-m", "leftfold.cli", "--help"], stdout=writing, check=False)
    finally:
        os.close(writing)
    assert ended.returncode == 141


@pytest.mark.parametrize("name", ["basket_summary", "nothing"])
def test_states_of_what_is_no_decider_are_not_verified(typed: Typing, name: str) -> None:
    result = typed("state", "verify", name, "--app", "services.baskets.app:app")
    result.ended(2, f"there is no decider in app baskets called '{name}'", "known: baskets")


def test_an_unforeseen_error_says_how_to_see_more(typed: Typing, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oops")

    try:
        fail()
    except ZeroDivisionError as error:
        tell(error)
    result = capsys.readouterr().err
    assert all(word in result for word in ("ZeroDivisionError: oops", "test_help.py", "LEFTFOLD_TRACEBACK=1"))
    assert "Traceback" not in result
    assert "Traceback" not in typed("get", "v", "k", "--app", "nothing:here").err
    assert "Traceback" in typed("--traceback", "get", "v", "k", "--app", "nothing:here").err


def test_an_unknown_name_comes_with_near_ones_and_all() -> None:
    error: LeftfoldError = unknown("view", "basket_sumary", ["store_totals", "basket_summary"])
    assert str(error) == (
        "there is no view 'basket_sumary'; did you mean basket_summary?\nknown: basket_summary, store_totals"
    )


@pytest.mark.parametrize(
    ("text", "specs", "printed"),
    [
        ("no workers; start: leftfold run booking", [SPEC], f"for these commands: export LEFTFOLD_APP={SPEC}\n"),
        (
            "see: leftfold run a",
            [SPEC, "b:app"],
            f"for these commands name the App that each is about: --app {SPEC} or --app b:app\n",
        ),
        ("see: leftfold run a", [""], ""),
        ("no command is in it", [SPEC], ""),
    ],
)
def test_commands_in_a_message_find_the_app_that_was_named(
    text: str, specs: list[str], printed: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_options(text, specs)
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize(
    ("text", "words", "exported"),
    [
        (
            "start: leftfold run booking",
            "--app a:app --kafka b:9092 --redis=redis://r --archive 'my dir'",
            "LEFTFOLD_APP=a:app LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=b:9092 LEFTFOLD_REDIS_URL=redis://r "
            "LEFTFOLD_ARCHIVE_DIR='my dir'",
        ),
        ("start: leftfold run booking", "--redis redis://u:secret@r", "LEFTFOLD_REDIS_URL='redis://***@r'"),
        ("ask again: leftfold send Book {} --kafka b:9092", "--kafka b:9092", ""),
        ("start one here: leftfold up", "--app a:app --kafka b:9092", ""),
        ("no command is in it", "--kafka b:9092", ""),
    ],
)
def test_commands_in_an_error_find_the_servers_that_were_named(
    text: str, words: str, exported: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(InfrastructureError(text), arguments=["status", *shlex.split(words)])
    printed = f"for these commands: export {exported}\n" if exported else ""
    assert capsys.readouterr().err == f"error: {text}\n{printed}"


@pytest.mark.parametrize(
    "words", ["worker --user 'svc-{app}-{part}' --app services.payments.app:app", "--app services.payments.app:app"]
)
def test_rights_are_granted_to_the_users_for_whom_they_are_printed(typed: Typing, words: str) -> None:
    """A right that was granted to others is not taken back."""
    result = typed("topics", "acl", *shlex.split(words)).ok().err
    line = shlex.split(result.rpartition("with: leftfold topics acl ")[2])
    assert sorted(line) == sorted([*shlex.split(words), "--apply"])
    parse_words(["topics", "acl", *line])


def test_an_app_that_is_found_anyway_is_not_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = ["other:app", "{SPEC}"]\n')
    monkeypatch.setenv("LEFTFOLD_APP", "b:app")
    note_options("see: leftfold run booking", [SPEC, "b:app"])
    assert capsys.readouterr().err == ""


def test_what_was_said_behind_an_option_is_found() -> None:
    for words in (["run", "--app", SPEC, "booking"], ["run", f"--app={SPEC}"]):
        assert value_in(words, "--app") == SPEC
    assert value_in(["run", "--app"], "--app") == value_in(["run", "booking"], "--app") == ""


@pytest.mark.parametrize(
    ("behind", "code"), [(None, 130), (KeyboardInterrupt(), 130), (ValueError(), 1)], ids=["", "in C code", "twin"]
)
def test_ctrl_c_before_the_command_has_begun_is_quiet(
    behind: BaseException | None, code: int, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(app: object) -> None:
        if behind is None:
            raise KeyboardInterrupt
        raise SystemError("<class 'Some'> returned a result with an exception set") from behind

    monkeypatch.setattr("typer.main.get_command", interrupted)
    result = typed("status")
    assert (result.code, result.out) == (code, "")
    assert code != 130 or result.err == ""
