"""Several Apps at work by one command: they react to each other, and may be named in any order."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from leftfold import ConfigurationError
from leftfold.cli.run.run import chosen_of
from leftfold.runtime.project import Usage, find_project, load_app, load_apps
from tests.cli.shell import Shell
from tests.servers import Addresses, emptied
from tests.waiting import wait_until

MODULE = """
from dataclasses import dataclass
from leftfold import App, Command, Decider, Event, FoldView, Process

class Asked(Event, category="questions", key="name"):
    name: str

class Answered(Event, category="answers", key="name"):
    name: str

class Ask(Command, category="questions", key="name"):
    name: str

class Answer(Command, category="answers", key="name"):
    name: str

@dataclass(frozen=True)
class Count:
    number: int = 0

def ask(command: Ask, state: Count) -> list[Asked]:
    return [Asked(name=command.name)]

def answer(command: Answer, state: Count) -> list[Answered]:
    return [Answered(name=command.name)]

def more(state: Count | None, event: Event) -> Count:
    return Count((state or Count()).number + 1)

def whose(given: Asked) -> str:
    return given.name

def react(given: Asked, state: Count) -> list[Answer]:
    return [Answer(name=given.name)]

kept = {"state": Count, "initial_state": Count(), "evolve": more}
questions = Decider("questions", commands=Ask, events=Asked, decide=ask, **kept)
answers = Decider("answers", commands=Answer, events=Answered, decide=answer, **kept)
clerk = Process("clerk", inputs=Asked, sends=Answer, correlate=whose, react=react, **kept)
asked = FoldView("asked", events=Asked, row=Count, evolve=more)
answered = FoldView("answered", events=Answered, row=Count, evolve=more)
asking = App("asking", partitions=2, deciders=[questions], views=[asked])
answering = App("answering", partitions=2, deciders=[answers], views=[answered], senders=["clerk", "late"])
between = App("between", partitions=2, processes=[clerk])
late = Process("late", inputs=Asked, sends=Answer, correlate=whose, react=react, **kept)
later = App("later", partitions=2, processes=[late])
again = App("asking")
"""
APPS = ("between", "answering", "asking")
AT_WORK = ("clerk", "questions", "answers", "asked", "answered")


def project(place: Path, *apps: str) -> None:
    (place / "several.py").write_text(MODULE, "utf-8")
    named = ", ".join(f'"several:{app}"' for app in apps)
    (place / "pyproject.toml").write_text(f"[tool.leftfold]\napp = [{named}]\n", "utf-8")


@pytest.mark.faults
@pytest.mark.servers
@pytest.mark.slow
def test_apps_that_react_to_each_other_run_by_one_command(lasting: Addresses, tmp_path: Path) -> None:
    """The process is named before those that it speaks with, and all Apps but the last are run."""
    project(tmp_path, *APPS, "later")
    shell = Shell(tmp_path).at(emptied(lasting))
    process = shell.start(["run", *AT_WORK, "--plain-logs"])
    try:
        shell.wait_until(process, lambda said: said.count(" following ") == 2 and " routing " in said)
        ask_and_look(shell)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(240.0) == 130


def ask_and_look(running: Shell) -> None:
    running("send", "Ask", '{"name": "why"}').ok()
    view = ("get", "answered", "why")
    wait_until(lambda: running(*view).code == 0, "the answer in the view of the other App")
    assert re.search(r"number\s+1", running(*view, "--app", "several:answering").out)
    assert running(*view, "--app", "several:asking").code == 2, "it is another App's"
    result = running("status").out
    assert all(name in result for name in AT_WORK)
    assert "does not declare" not in result
    ours = [word for app in APPS for word in ("--app", f"several:{app}")]
    found = {row["about"]: row for row in running("doctor", "--json", *ours).rows()}
    assert not [row for row in found.values() if not row["well"]]
    assert found["app"]["message"].startswith("between: ")
    assert found["workers"]["message"] == "answers has 1 worker, questions has 1 worker"
    assert found["views"]["message"] == "2 views, 2 generations"
    assert running("log", "archive", "questions", "--to", "kept").code == 0
    trim = ("log", "trim", "questions", "--older-than", "0d", "--yes", "--archive", "kept")
    running(*trim).ended(69, "process late")  # an App that has never run is to hear of it
    assert running(*trim, "--leave-behind", "late").code == 0
    asked = running.apart(  # whose executors find the module, since it is where that process is
        "log", "sql", "SELECT q.name FROM Asked q JOIN Answered a ON q.name = a.name", "--json", "--archive", "kept"
    )
    assert asked.rows() == [{"name": "why"}], asked.err
    starting = next(line for line in running.said().splitlines() if " starting " in line)
    assert all(name in starting for name in ("clerk.router", "answering.projector", "asking.projector"))


def test_all_apps_of_the_project_are_meant_and_where_there_can_be_one_that_which_has_it(place: Path) -> None:
    project(place, *APPS)
    assert find_project().app == "several:between"
    assert [load_app(having=[name]).name for name in ("clerk", "answers", "asked", "Answer", "questions.Ask")] == [
        "between", "answering", "asking", "answering", "asking",
    ]  # fmt: skip
    assert load_app().name == load_app(having=["unknown"]).name == "between"
    assert load_app("several:asking", having=["answered"]).name == "asking"
    assert [app.name for app in load_apps([]).values()] == list(APPS)
    assert [app.name for app in load_apps(["several:asking"]).values()] == ["asking"]


def test_a_name_is_looked_for_in_all_apps_and_those_without_it_are_left_out(place: Path) -> None:
    project(place, *APPS)
    apps = load_apps([])
    assert {spec: one.processes for spec, one in chosen_of(apps, ["clerk"]).items()} == {
        "several:between": apps["several:between"].processes
    }
    with pytest.raises(Usage, match="in app between, answering, asking called 'clerc'; did you mean clerk"):
        chosen_of(apps, ["clerc"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('["several:asking", "several:again"]', "several:asking and several:again are both called 'asking'"),
        ('["several:asking", 3]', "is one module:name, or a list of them"),
        ("3", "is one module:name, or a list of them"),
    ],
    ids=["one name", "a number among them", "a number"],
)
def test_a_wrong_list_of_apps_is_explained(place: Path, value: str, message: str) -> None:
    project(place)
    (place / "pyproject.toml").write_text(f"[tool.leftfold]\napp = {value}\n", "utf-8")
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        load_apps([])
