"""An event as a line: for people, or as JSON."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import typer

from leftfold.codec import header
from leftfold.digits import number_in
from leftfold.ports import RawRecord

__all__ = ["Line"]


class Line:
    """Writes records as lines; what is no event of ours is shown as far as it can be read."""

    def __init__(self, *, as_json: bool, colour: bool) -> None:
        self.of = self._json if as_json else self._coloured if colour else self._plain

    def _json(self, record: RawRecord) -> str:
        def text(name: str) -> str:
            return header(record.headers, f"ce_{name}").decode(errors="replace")

        told: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "key": _key(record),
            "type": text("type"),
            "id": text("id"),
            "time": text("time"),
            "version": number_in(text("sequence")),
            "decision": text("decision"),
            "correlation_id": text("correlationid"),
            "causation_id": text("causationid"),
            "event": _body(record),
        }
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n"

    def _plain(self, record: RawRecord) -> str:
        place, time, key, version, decision, name, body = _parts(record)
        return f"{place:<9} {time:<24} {key:<12} v{version:<4} {decision:<5} {name:<20} {body}\n"

    def _coloured(self, record: RawRecord) -> str:
        place, time, key, version, decision, name, body = _parts(record)
        head = typer.style(f"{place:<9} {time:<24}", dim=True)
        middle = typer.style(f"v{version:<4} {decision:<5}", dim=True)
        return (
            f"{head} {typer.style(f'{key:<12}', fg='cyan')} {middle} {typer.style(f'{name:<20}', bold=True)} {body}\n"
        )


def _parts(record: RawRecord) -> tuple[str, ...]:
    values = (header(record.headers, f"ce_{name}") for name in ("time", "sequence", "decision", "type"))
    moment, version, decision, type_ = (value.decode(errors="replace") or "?" for value in values)
    body = json.dumps(_body(record), ensure_ascii=False)
    name = type_.partition(".")[2].removesuffix(".v1") or type_
    return f"{record.partition}:{record.offset}", _brief(moment), _key(record) or "?", version, decision, name, body


def _brief(moment: str) -> str:
    """A time to the millisecond."""
    try:
        text = datetime.fromisoformat(moment).isoformat(timespec="milliseconds")
    except ValueError:
        return moment
    return text.replace("+00:00", "Z")


def _key(record: RawRecord) -> str | None:
    return None if record.key is None else record.key.decode(errors="replace")


def _body(record: RawRecord) -> Any:
    try:
        return json.loads(record.value or b"null")
    except (ValueError, RecursionError):
        return (record.value or b"").decode(errors="replace")
