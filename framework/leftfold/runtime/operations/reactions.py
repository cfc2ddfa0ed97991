"""Parked events of reactions as operators see them: their rows, and another try of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry, Tried
from leftfold.model.app import App
from leftfold.ports.codec import header
from leftfold.runtime.connect import kafka_settings, open_archive
from leftfold.runtime.operations.logged_events import value_in
from leftfold.runtime.project import archive_of

__all__ = ["parked_events", "retry_parked"]


def parked_events(reaction: str, kafka: str | None, values: float = 0) -> list[dict[str, Any]]:
    """A row for each parked event of a reaction: its address, type, key, number of tries, why it failed, and its value.

    The value is None where the event was too large to be copied; the log has it at its address.

    Args:
        values: of how many events, all of which are held in memory.

    Raises:
        InfrastructureError: no broker answers, or the reaction has never run.
    """
    rows = list[dict[str, Any]]()
    for record in ParkedEvents(reaction, kafka_settings(kafka)).read():
        fields = {n: header(record.headers, n).decode(errors="replace") for n in ("dead_source", "attempts", "ce_type")}
        why = header(record.headers, "dead_reason").decode(errors="replace")
        key = (record.key or b"").decode(errors="replace")
        event, type_, tries = fields["dead_source"], fields["ce_type"], fields["attempts"]
        is_left = len(rows) >= values or header(record.headers, "dead_reference")
        value = None if is_left else value_in(record)
        rows.append({"event": event, "type": type_, "key": key, "tries": tries, "why": why, "value": value})
    return rows


def retry_parked(
    app: App, reaction: str, kafka: str | None, tell: Callable[[int], None], archive: str | None = None
) -> Tried:
    """Tries each parked event of a reaction once, in this process; `tell` is called with the number tried so far.

    Args:
        archive: as `--archive`; it has the events that were too large to copy and that topics have lost.

    Raises:
        InfrastructureError: no broker answers.
    """
    return ReactionRetry(app, reaction, kafka_settings(kafka), open_archive(archive_of(archive))).run(tell)
