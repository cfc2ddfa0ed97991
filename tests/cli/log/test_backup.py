"""Everything that Kafka and Redis held is lost, and the archive is there: the steps of docs/backup.md, typed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.bulk import read_whole
from leftfold.ports.message_codec import header
from tests.cli.guild import HEARD
from tests.cli.shell import ROOT, Shell, serving
from tests.servers import Addresses, emptied, patient
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

PAGE = ROOT / "docs" / "backup.md"
EVENTS, INPUTS = names.events("bells"), names.commands("watch")


@pytest.fixture
def shell(empty_servers: Addresses, tmp_path: Path) -> Shell:
    """A project with a decider, a process, a view and reactions, without an archive in its settings."""
    (tmp_path / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.cli.guild:app"\n')
    return Shell(tmp_path, {HEARD: str(tmp_path / "heard")}).at(empty_servers)


def types(settings: KafkaSettings, topic: str) -> Counter[str]:
    """How many records of each type a topic holds."""
    with closing(KafkaLogReader(settings)) as log:
        records: Iterator[Any] = read_whole(log, log.starts([topic]), log.stable_ends([topic]))
        return Counter(header(record.headers, "ce_type").decode() for record in records)


def wind(shell: Shell, bell: str) -> int:
    """Winds a bell that rings at once; its stream's version."""
    body = json.dumps({"bell": bell, "at": "2020-01-01T00:00:00Z"})
    return int(shell("send", "Wind", body, "--json", "--timeout", "240").ok().rows()[0]["version"])


def wait_heard(shell: Shell, *bells: str) -> None:
    heard = shell.place / "heard"
    wait_until(lambda: heard.exists() and sorted(heard.read_text().split()) == sorted(bells), f"{bells} to be heard")


def parked(shell: Shell) -> int:
    """How many events the reaction that always fails has parked."""
    return len(shell("reactions", "parked", "mute", "--json").rows())


def test_the_steps_of_the_page_bring_streams_and_views_back_and_nothing_is_done_twice(
    shell: Shell, empty_servers: Addresses
) -> None:
    settings, folder = patient(empty_servers.kafka), str(shell.place / "kept")
    with serving(shell):
        assert wind(shell, "a") == 1
        wait_heard(shell, "a")
        wait_until(lambda: parked(shell) == 1, "the parked event")
    shell("log", "archive", "bells", "--to", folder).ok()
    emptied(empty_servers)

    shell("log", "verify-archive", "bells", "--archive", folder).ok()
    shell("topics", "ensure").ok()
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (shell.place / "restoring.py").write_text(f"{program}\nrestore({folder!r}, {EVENTS!r})\n")
    shell.python("restoring.py").ok()
    assert types(settings, EVENTS) == {"bells.Wound.v1": 1, "bells.Rang.v1": 1}
    shell.python("restoring.py").ended(1, "holds records already")
    for reaction in ("herald", "mute"):
        shell("reactions", "begin", reaction, "--since", "end", "--yes").ok()
    with Groups(settings) as groups:  # as kafka-consumer-groups does
        groups.set(names.routing("guild", "watch"), groups.ends([EVENTS]))

    with serving(shell):
        assert wind(shell, "a") == 3, "behind what was restored"
        wait_heard(shell, "a", "a")
        wait_until(lambda: parked(shell), "the parked event")
        wait_until(lambda: shell("get", "wound", "a", "--json").out.count('"times":2'), "the view")
        shell("verify").ok()
    assert parked(shell) == 1, "the new event only"
    shell("state", "verify").ok()
    assert types(settings, EVENTS) == {"bells.Wound.v1": 2, "bells.Rang.v1": 2}
    assert types(settings, INPUTS)["bells.Wound.v1"] == 1, "the process was given the new event only"
    shell("log", "archive", "bells", "--to", folder).ended(69, "another topic")
    shell("log", "archive", "bells", "--to", f"{folder}-2").ok()
