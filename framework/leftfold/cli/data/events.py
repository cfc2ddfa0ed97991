"""`leftfold events`: prints the events of a category or of one stream, and follows new ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from types import TracebackType
from typing import Annotated, Any, Self

import typer

from leftfold.cli.options import ArchiveOption, JsonOption, KafkaOption, examples
from leftfold.engine.processing.stream_state import MARK
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.encoding import number_in
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.ports.bulk import read_to
from leftfold.ports.codec import header
from leftfold.ports.protocols import LogReader, RawRecord
from leftfold.runtime.connect import open_reader
from leftfold.runtime.console import Styled, note, styled
from leftfold.runtime.servers import topic_in

__all__ = ["fields_of"]


def fields_of(record: RawRecord) -> Mapping[str, Any]:
    """A record as a JSON object; one that is no event is shown as far as it can be read."""

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
        "principal": text("authid"),
        "event": _body(record),
    }


def line_of(record: RawRecord) -> Sequence[str | Styled]:
    """A record as a line for people."""
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
    """A time in milliseconds, as text."""
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


_BATCH = 1000
_WAIT = 0.2
_PATIENCE = 15.0
_STEP = 4


class EventLog:
    """The events of one category, or of one stream, for which only its partition is read.

    Args:
        archive: the archive with events that the topic has lost; '' = none.

    Raises:
        Usage: the cluster has no such category.
    """

    def __init__(self, settings: KafkaSettings, category: str, key: str = "", *, archive: str = "") -> None:
        with ClusterAdmin(settings) as cluster:
            topic, count = topic_in(cluster, category)
            starts: Position = cluster.starts([topic])
        self._topic, self._key = topic, key.encode()
        self._partitions = [partition_of(self._key, count)] if key else list(range(count))
        self._reader: LogReader = open_reader(settings, archive)()
        # The last N events are taken from the topic alone; all events may start in the archive.
        self._floor = {} if archive else starts.offsets[topic]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()

    def read(self, last: int | None, *, follow: bool) -> Iterator[list[RawRecord]]:
        """Batches of events, sorted by time within a batch: the last few or all, then, with `follow`, new ones."""
        ends = self._ends()
        if last is None:
            yield from self._read(self._from(dict.fromkeys(self._partitions, 0)), ends)
        else:
            yield self._last(last, ends)
        while follow:
            records = self._reader.poll(_BATCH, _WAIT)
            yield self._sorted(records)

    def _ends(self) -> Position:
        ends = self._reader.ends([self._topic])
        return self._from({p: ends.next_offset(self._topic, p) for p in self._partitions})

    def _last(self, count: int, ends: Position) -> list[RawRecord]:
        """The last few events; offsets have gaps, so more and more offsets are read until enough events are found."""
        reach = max(1, count)
        while True:
            reach *= _STEP
            start = {p: max(self._first(p), ends.next_offset(self._topic, p) - reach) for p in self._partitions}
            found = list(chain.from_iterable(self._read(self._from(start), ends)))
            if len(found) >= count or all(offset <= self._first(p) for p, offset in start.items()):
                return self._sorted(found)[-count:] if count else []

    def _first(self, partition: int) -> int:
        return self._floor.get(partition, 0)

    def _read(self, start: Position, ends: Position) -> Iterator[list[RawRecord]]:
        """Batches up to the ends; the wait for a transaction that stays open before them is limited."""
        yield from map(self._sorted, read_to(self._reader, start, ends, patience=_PATIENCE, limit=_BATCH, wait=_WAIT))
        if not self._reader.position().covers(ends):
            note(f"nothing more can be read before {ends}: no broker answers, or a transaction is open there")

    def _from(self, offsets: dict[int, int]) -> Position:
        return Position({self._topic: offsets})

    def _sorted(self, records: list[RawRecord]) -> list[RawRecord]:
        # A record with the key of the changelog checkpoint ends a transaction that a broker forgot; it is no event.
        mine = [r for r in records if (r.key == self._key if self._key else r.key != MARK)]
        return sorted(mine, key=lambda r: (r.time, r.partition, r.offset))


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
    from leftfold.runtime.connect import kafka_settings
    from leftfold.runtime.console import emit, note, say_lines
    from leftfold.runtime.project import Usage, archive_of

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
                for record in shown:
                    emit(fields_of(record))
                sys.stdout.flush()
            else:
                say_lines(map(line_of, shown))
            if left is not None and (left := left - len(shown)) <= 0:
                break
    if key and last != 0 and not found:
        with EventLog(settings, category, archive=past) as log:
            others = [
                (record.key or b"").decode(errors="replace")
                for part in log.read(_NEAR, follow=False)
                for record in part
            ]
        near = (
            f"the last events there are of: {', '.join(dict.fromkeys(others))}" if others else "it has no events at all"
        )
        note(f"no event of stream {key!r} is in category {category}; {near}")
        raise typer.Exit(1)
