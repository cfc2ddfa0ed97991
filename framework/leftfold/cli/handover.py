"""What a process hands on to its children: addresses in the environment, for others can read a command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["LOGS", "handover", "logs_of", "spark_handover"]

LOGS: Mapping[str, bool | None] = {"auto": None, "json": True, "plain": False}
"""How logs are written, and what `open_report` wants to hear for it."""


def handover(*, kafka: str | None, redis: str | None, archive: str | None = None) -> dict[str, str]:
    """The variables; what was not said stays unsaid, so that a child finds it out anew."""
    told = {"LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS": kafka, "LEFTFOLD_REDIS_URL": redis, "LEFTFOLD_ARCHIVE_DIR": archive}
    return {name: value for name, value in told.items() if value}


def spark_handover(master: str | None, py_files: Sequence[Path]) -> dict[str, str]:
    """The variables of a part that works with Spark, in the same manner."""
    told = {"LEFTFOLD_SPARK_MASTER": master}
    if py_files:
        told["LEFTFOLD_SPARK_PY_FILES"] = json.dumps([str(path.resolve()) for path in py_files])
    return {name: value for name, value in told.items() if value}


def logs_of(json_logs: bool | None) -> str:
    """The name of a way to write logs."""
    return next(name for name, value in LOGS.items() if value is json_logs)
