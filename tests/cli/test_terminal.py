"""What a person at a terminal sees: questions before what cannot be taken back, progress, and a quiet end by Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.client.kafka_client import KafkaClient
from tests.cli.shell import ROOT, Shell, Typed, running
from tests.cli.terminal import COMMAND, CTRL_C, SECONDS, Terminal, keys
from tests.cli.tower import app
from tests.process.alarms import Wind
from tests.servers import Addresses, patient
from tests.waiting import wait_until

RINGS = 60


@pytest.fixture(scope="module")
def tower(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The App at work without its view, with two timers set and events to fold."""
    shell = Shell(tmp_path_factory.mktemp("tower")).at(empty_servers)
    (shell.place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.cli.tower:app"\n')
    with running(shell, "run", "bells", "quiet") as process:
        shell.wait_until(process, lambda said: said.count('"serving"') >= 2 and '"routing"' in said)
        with closing(KafkaClient(app.name, patient(empty_servers.kafka))) as client:
            soon = datetime.now(UTC) + timedelta(hours=1)
            client.send_many([Wind(bell=f"b-{n % 2}", at=soon) for n in range(RINGS)], timeout=SECONDS)
        wait_until(lambda: len(shell("timers", "list", "--json").rows()) == 2, "two timers")
        yield shell


def typing(shell: Shell, *words: str) -> Terminal:
    """A command of `leftfold` on a terminal."""
    return Terminal([*COMMAND, *words], shell.place, shell._environment)


def answered(shell: Shell, answer: str, *words: str) -> Typed:
    """What comes of a command whose question is answered."""
    with keys(f"{answer}\n") as terminal:
        return shell(*words, stdin=terminal)


def set_for(shell: Shell) -> set[str]:
    """The bells whose timers are set."""
    return {row["key"] for row in shell("timers", "list", "quiet", "--json").rows()}


@pytest.mark.servers
@pytest.mark.parametrize(
    ("action", "bell", "becomes"),
    [
        ("fire", "b-0", r"it sends bells\.Ring\.v1 \{\"bell\":\"b-0\"\} now"),
        ("cancel", "b-1", r"it will never send bells\.Ring\.v1 \{\"bell\":\"b-1\"\}"),
    ],
)
def test_an_order_about_a_timer_is_given_once_it_is_agreed(tower: Shell, action: str, bell: str, becomes: str) -> None:
    words = ("timers", action, "quiet", bell, "ring", "--reason", "a test", "--timeout", "2m")
    unasked = tower(*words)
    assert (unasked.code, unasked.out) == (2, "")
    assert "there is no terminal to ask on; to go on, say --yes" in unasked.err
    refused = answered(tower, "n", *words)
    assert (refused.code, refused.err.endswith("nothing was changed\n")) == (1, True), refused
    assert re.search(rf"{action} timer ring of quiet {bell}, due .*{becomes}\. Sure\? \[y/N\]:", refused.err)
    if action == "cancel":
        with typing(tower, *words) as terminal:
            terminal.wait_asking(r"\[y/N\]: ")
            terminal.type(CTRL_C)
            assert terminal.ended() == 130
            assert "Traceback" not in terminal.shown
    assert bell in set_for(tower)
    done = answered(tower, "y", *words)
    assert (done.code, "taken; the timer is not set any more" in done.out + done.err) == (0, True), done
    assert bell not in set_for(tower)


@pytest.mark.faults
@pytest.mark.servers
def test_a_long_rebuild_shows_how_far_it_is_and_ends_quietly_by_ctrl_c(tower: Shell) -> None:
    with typing(tower, "rebuild", "wound", "--engine", "local") as terminal:
        terminal.wait_shown(r"wound: fold")
        terminal.type(CTRL_C)
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.shown
        assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l") >= 0, "the cursor is there again"
    silent = tower("rebuild", "wound", "--engine", "local").ok()
    assert "\x1b" not in silent.out + silent.err, "nothing is drawn where there is no terminal"


@pytest.mark.servers
def test_routers_skip_lost_events_once_the_operator_agrees(tower: Shell, empty_servers: Addresses) -> None:
    with Groups(patient(empty_servers.kafka)) as groups:
        groups.delete_records("bells.events", {0: 2})
    words = ("log", "skip", "younger", "--app", "tests.cli.tower:with_younger")
    answered(tower, "n", *words).ended(1, "never reach the process; have the routers of younger pass over them? [y/N]:")
    assert tower(*words).code == 2, "they are still lost"
    assert answered(tower, "y", *words).code == 0
    assert "nothing is lost" in tower(*words).err


@pytest.mark.faults
@pytest.mark.servers
def test_ctrl_c_while_servers_are_being_made_is_no_failure_of_theirs(tmp_path: Path) -> None:
    """It reaches their Java, too, whose end was reported as an error."""
    shell = Shell(tmp_path)
    assert shell("new", "shop").code == 0
    shell = Shell(tmp_path / "shop")
    with typing(shell, "dev") as terminal:
        terminal.wait_shown("formatting the broker's storage\n")
        terminal.type(CTRL_C)
        assert terminal.ended() == 130
        assert "stopping in order; Ctrl-C again does not wait" in terminal.shown
        assert terminal.shown.endswith("stopped\n")
        assert "error:" not in terminal.shown


@pytest.fixture
def slow_imports(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing pydantic, the first thing that `leftfold` does, never ends."""
    # Not signal.pause(): a Ctrl-C that comes just before it is called would be heard behind it only.
    endless = 'import time\nprint("importing", flush=True)\nwhile True:\n    time.sleep(0.1)\n'
    (tmp_path / "pydantic.py").write_text(endless)
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'framework'}"}


def test_ctrl_c_while_everything_is_still_imported_ends_quietly(tmp_path: Path, slow_imports: dict[str, str]) -> None:
    with Terminal([*COMMAND, "status"], tmp_path, slow_imports) as terminal:
        terminal.wait_shown("importing\n")
        terminal.type(CTRL_C)
        assert terminal.ended() == -signal.SIGINT
        assert terminal.shown == "importing\n^C"


def test_twin_of_a_command_line_that_is_begun_by_the_package_itself(
    tmp_path: Path, slow_imports: dict[str, str]
) -> None:
    with Terminal([sys.executable, "-m", "leftfold.cli", "status"], tmp_path, slow_imports) as terminal:
        terminal.wait_shown("importing\n")
        terminal.type(CTRL_C)
        terminal.ended()
        assert "Traceback (most recent call last)" in terminal.shown
        assert "KeyboardInterrupt" in terminal.shown


def test_sigterm_ends_the_first_process_of_a_container_at_once(tmp_path: Path, slow_imports: dict[str, str]) -> None:
    """As the kernel does with every other process: it drops the signal for a first process without a handler."""
    probe = "import os; os.getpid = lambda: 1\nfrom leftfold_shell import main; main()"
    command = [sys.executable, "-c", probe]
    with subprocess.Popen(command, cwd=tmp_path, env=slow_imports, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.terminate()
        assert process.wait(SECONDS) == 143


def test_who_starts_it_with_ctrl_c_ignored_means_it(tmp_path: Path) -> None:
    probe = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv[1:] = ['--version']\n"
        "import atexit; atexit.register(lambda: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN))\n"
        "from leftfold_shell import main; main()"
    )
    assert Shell(tmp_path).python("-c", probe).ok().out.splitlines()[-1] == "True"
