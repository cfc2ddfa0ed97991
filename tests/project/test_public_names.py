"""Every public name with its path: what is imported by services changes only together with this list."""

from __future__ import annotations

import importlib
from pathlib import Path

PACKAGES = (
    "leftfold",
    "leftfold.testing",
    "leftfold.testing.simulation",
    "leftfold.testing.contracts",
    "leftfold.spark",
    "leftfold.faust",
    "leftfold.http",
    "leftfold.http.console",
    "leftfold.local",
    "leftfold.client.commands",
    "leftfold.kafka.bulk_log",
    "leftfold.kafka.log_reader",
    "leftfold.kafka.settings",
    "leftfold.ports.message_codec",
    "leftfold.redis",
    "leftfold.runtime.connect",
    "leftfold.spark.queries.testing",
    "leftfold.spark.streaming.projection",
)
LIST = Path(__file__).with_name("public_names.txt")


def test_the_public_names_are_those_of_the_list() -> None:
    found = [f"{package}.{name}" for package in PACKAGES for name in sorted(importlib.import_module(package).__all__)]
    assert found == LIST.read_text("utf-8").split()
