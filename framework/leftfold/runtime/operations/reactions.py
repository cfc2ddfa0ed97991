"""Parked events of reactions as operators see them: their rows, and another try of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

from leftfold.engine.reactions.pending import PendingReader
from leftfold.errors import ContractError
from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry, Tried
from leftfold.model.app import App
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import kafka_settings, open_archive
from leftfold.runtime.operations.logged_events import value_in
from leftfold.runtime.project import Usage, archive_of

__all__ = ["discard_parked", "parked_events", "retry_parked"]


def parked_events(reaction: str, kafka: str | None, values: float = 0, most: int | None = None) -> list[dict[str, Any]]:
    """A row for each parked event of a reaction: its address, type, key, number of tries, why it failed, and its value.

    The value is None where the event was too large to be copied; the log has it at its address.

    Args:
        values: of how many events, all of which are held in memory. most: how many rows; None = all.

    Raises:
        InfrastructureError: no broker answers, or the reaction has never run.
    """
    rows = list[dict[str, Any]]()
    for record in islice(ParkedEvents(reaction, kafka_settings(kafka)).read(), most):
        fields = {n: header(record.headers, n).decode(errors="replace") for n in ("attempts", "ce_type")}
        why = header(record.headers, "dead_reason").decode(errors="replace")
        key = (record.key or b"").decode(errors="replace")
        event, type_, tries = _name_of(record), fields["ce_type"], fields["attempts"]
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


def discard_parked(
    app: App,
    reaction: str,
    kafka: str | None,
    which: Collection[str],
    why: str,
    who: str,
    *,
    archive: str | None = None,
) -> int:
    """Has parked events of a reaction never be tried again; returns how many.

    Args:
        which: as `parked_events` names them; none = those of types that the reaction in this code does not handle, in
            no version, and records that no reaction has parked.

    Raises:
        Usage: one of them is not parked. Fenced: another operator retries or discards them now.
        InfrastructureError: no broker answers.
    """
    events = ParkedEvents(reaction, kafka_settings(kafka), open_archive(archive_of(archive)))
    reader = PendingReader(app.reaction(reaction))

    def is_unhandled(record: RawRecord) -> bool:
        try:
            original = events.original(record)
        except ContractError:
            return not header(record.headers, "dead_source")  # what was only lost may be handled
        try:
            return reader.read(original) is None
        except ContractError:
            return False  # it is of a newer version

    if missing := set(which) - {_name_of(record) for record in events.read()}:
        raise Usage(f"{min(missing)} is not parked; see what is: leftfold reactions parked {reaction}")
    chosen = (lambda record: _name_of(record) in which) if which else is_unhandled
    return events.discard(chosen, why=why, who=who)


def _name_of(record: RawRecord) -> str:
    """How a parked event is named: by its place in the log, or by its own where it was not parked by a reaction."""
    return header(record.headers, "dead_source").decode(errors="replace") or str(record.address)
