"""An event as a line: for people, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from leftfold.cli.console import Styled, styled
from leftfold.codec import header
from leftfold.digits import number_in
from leftfold.ports import RawRecord

__all__ = ["fields_of", "line_of"]


def fields_of(record: RawRecord) -> Mapping[str, Any]:
    """A record as one object; what is no event of ours is told as far as it can be read."""

    def text(name: str) -> str:
        return header(record.headers, f"ce_{name}").decode(errors="replace")

    return {
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


def line_of(record: RawRecord) -> Sequence[str | Styled]:
    """The same for people."""
    place, time, key, version, decision, name, body = _parts(record)
    return (
        styled(f"{place:<9} {time:<24}", dim=True),
        " ",
        styled(f"{key:<12}", fg="cyan"),
        " ",
        styled(f"v{version:<4} {decision:<5}", dim=True),
        " ",
        styled(f"{name:<20}", bold=True),
        f" {body}",
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
