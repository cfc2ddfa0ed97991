"""`leftfold events`: prints the events of a category or of one stream, and follows new ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from leftfold.cli.options import ArchiveOption, JsonOption, KafkaOption, examples
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import Styled, emit, note, say_lines, styled
from leftfold.runtime.operations.logged_events import EventLog, fields_of, key_in, value_in
from leftfold.runtime.project import Usage, archive_of

__all__ = ["fields_of"]


def line_of(record: RawRecord) -> Sequence[str | Styled]:
    """A record as a line for people."""
    values = (header(record.headers, f"ce_{name}") for name in ("time", "sequence", "decision", "type"))
    time, version, decision, type_ = (value.decode(errors="replace") or "?" for value in values)
    return (
        styled(f"{f'{record.partition}:{record.offset}':<9} {_brief(time):<24}", dim=True),
        " ",
        styled(f"{key_in(record) or '?':<12}", fg="cyan"),
        " ",
        styled(f"v{version:<4} {decision:<5}", dim=True),
        " ",
        styled(f"{type_.partition('.')[2].removesuffix('.v1') or type_:<20}", bold=True),
        f" {json.dumps(value_in(record), ensure_ascii=False)}",
    )


def _brief(moment: str) -> str:
    """A time in milliseconds, as text."""
    try:
        text = datetime.fromisoformat(moment).isoformat(timespec="milliseconds")
    except ValueError:
        return moment
    return text.replace("+00:00", "Z")


EXAMPLES = examples(
    "leftfold events baskets                     the last 20",
    "leftfold events baskets b-1                 one stream, from its first event",
    "leftfold events baskets --follow            and what comes, until Ctrl-C",
    "leftfold events baskets --from-start --json | jq -r .type | sort | uniq -c",
)
_TAIL, _NEAR = 20, 5


def events(
    category: Annotated[str, typer.Argument(metavar="CATEGORY", help="As in baskets.")],
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="One stream; only its own partition is read.")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="Stop after so many.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first event.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help=f"Begin with the last N; else {_TAIL}.")
    ] = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print events as they stand in the log.

    Each line: partition:offset, time, key, stream version, place in its decision, type, fields. Events of one stream
    are in order; those of different partitions are sorted by time as far as they are read together. Exit code 1 when
    the stream of a KEY has no event.
    """
    if from_start and tail is not None:
        raise Usage("say --from-start or --tail, not both")
    last = None if from_start or (key and tail is None) else _TAIL if tail is None else tail
    left, found = limit, False
    settings, past = kafka_settings(kafka), archive_of(archive)
    with EventLog(settings, category, key, archive=past) as log:
        for records in log.read(last, follow=follow):
            found = found or bool(records)
            shown = records if left is None else records[:left]
            if as_json:
                emit(*map(fields_of, shown))
                sys.stdout.flush()
            else:
                say_lines(map(line_of, shown))
            if left is not None and (left := left - len(shown)) <= 0:
                break
    if key and last != 0 and not found:
        with EventLog(settings, category, archive=past) as log:
            others = [key_in(record) or "" for part in log.read(_NEAR, follow=False) for record in part]
        known = ", ".join(dict.fromkeys(others))
        near = f"the last events there are of: {known}" if others else "it has no events at all"
        note(f"no event of stream {key!r} is in category {category}; {near}")
        raise typer.Exit(1)
