"""What a process of ours hands on to its children on their command line."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LOGS", "handover", "logs_of"]

LOGS: Mapping[str, bool | None] = {"auto": None, "json": True, "plain": False}
"""How logs are written, and what `open_report` wants to hear for it."""


def handover(*, app: str, kafka: str | None, redis: str | None) -> list[str]:
    """The arguments; what was not said stays unsaid, so that a child finds it out anew."""
    told = {"--app": app, "--kafka": kafka, "--redis": redis}
    return [f"{name}={value}" for name, value in told.items() if value]


def logs_of(json_logs: bool | None) -> str:
    """The name of a way to write logs."""
    return next(name for name, value in LOGS.items() if value is json_logs)
