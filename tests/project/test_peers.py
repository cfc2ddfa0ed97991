from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.projector import GOALS, SLOW

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


PROGRAMS = {*GOALS, "postgres"}


def test_every_peer_has_a_program_and_an_environment() -> None:
    assert {file.stem for file in PEERS.glob("*.txt")} == PROGRAMS
    assert {file.stem for file in PEERS.glob("*.py")} - {"__init__"} == PROGRAMS
    assert set(GOALS) >= SLOW


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_package_of_a_peer_is_pinned(name: str) -> None:
    lines = (PEERS / f"{name}.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
