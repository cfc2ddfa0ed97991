"""`leftfold dead`: lists, resends or discards the dead letters of commands and of process inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from leftfold.cli.options import ByOption, JsonOption, KafkaOption, ReasonOption, YesOption, examples, read_address
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import DeadLetters
from leftfold.kafka.administration.states import folded
from leftfold.model import keys as names
from leftfold.model.position import Position, RecordAddress
from leftfold.ports.outgoing import Letter, letters_in, offset_in
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.project import Usage, unknown
from leftfold.runtime.servers import last_records

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["dead_waiting", "standing_still"]


_DEAD = names.dead("")
_LAST = 2000
"""Most offsets of each partition that one survey reads."""
_NEWS, _SOON = 24 * 3600.0, 7 * 24 * 3600.0
"""Seconds: letters younger than a day are reported, and letters that will be deleted within a week."""


class Retention(NamedTuple):
    """The retention of dead letters: how many offsets were deleted, and seconds they are kept; None = for ever."""

    deleted: int
    seconds: float | None

    def leaves(self, letter: Letter) -> float | None:
        """When a letter is deleted, in seconds since 1970 or somewhat later; None = never."""
        return None if self.seconds is None else letter.record.time / 1000 + self.seconds


def kept(cluster: Any, name: str) -> Retention:
    """Retention of the dead letters of a category or process; for ever where the topic does not exist."""
    topic = names.dead(name)
    if not cluster.partition_counts([topic]):
        return Retention(0, None)
    lasting = int(cluster.configs([topic])[topic]["retention.ms"])
    starts: Position = cluster.starts([topic])
    return Retention(sum(starts.offsets[topic].values()), None if lasting < 0 else lasting / 1000)


def dead_waiting(cluster: Any, settings: Any, name: str) -> tuple[int, list[str]]:
    """How many dead letters wait among the last ones of each partition, and the problems to report.

    Reported are new letters, and letters that will soon be deleted.
    """
    records = last_records(cluster, settings, names.dead(name), _LAST)
    found = [letter for letter in letters_in(records) if letter.is_listed and not letter.handled]
    if not found:
        return 0, []
    problems, now = list[str](), time.time()
    first, newest = min(found, key=_time), max(found, key=_time)
    leaves = kept(cluster, name).leaves(first)
    if (ago := now - _time(newest)) < _NEWS:
        trace = f"leftfold log trace {id_}, " if (id_ := newest.text("ce_id")) else ""
        waiting = f"{amount(len(found), 'dead letter')}, the last one {lasting(ago)} ago: {newest.reason}"
        problems.append(f"{waiting}; see: {trace}leftfold dead list {name}")
    if leaves is not None and leaves < now + _SOON:
        waited = f"{first.place} has waited for {lasting(now - _time(first))}"
        problems.append(f"{waited}, and is deleted in {lasting(leaves - now)}; see: leftfold dead list {name}")
    return len(found), problems


def _time(letter: Letter) -> float:
    return letter.record.time / 1000


def standing_still(cluster: Any, settings: Any, name: str, version: int) -> list[str]:
    """Problems for events that a category's workers cannot fold, which keep their partitions from being served."""
    events, state = names.events(name), names.state(name, version)
    records = last_records(cluster, settings, names.dead(name), _LAST)
    at = {
        (letter.record.partition, offset): letter
        for letter in letters_in(records)
        if not letter.handled and (offset := offset_in(letter.record, events)) is not None
    }
    # If the state topic has advanced since, other code could fold the event.
    count = cluster.partition_counts([state]).get(state, 0) if at else 0
    found = folded(settings, state, count)
    return [
        f"{place} cannot be folded, so {names.commands(name)}[{partition}] is not served: {letter.reason}; start code "
        f"that can fold it, or have it passed over: leftfold log skip {name} '{place}' --reason WHY"
        for (partition, offset), letter in sorted(at.items())
        if found.get(partition, 0) <= offset and (place := RecordAddress(events, partition, offset))
    ]


class Burials:
    """Dead letters of every category and process: commands, inputs, and events of which routers made no input."""

    def __init__(self, kafka: str | None) -> None:
        self._settings = kafka_settings(kafka)
        with ClusterAdmin(self._settings) as cluster:
            topics: dict[str, int] = cluster.topics()
        self._known = sorted(name.removesuffix(_DEAD) for name in topics if name.endswith(_DEAD))

    def letters(self, category: str = "") -> Iterator[Letter]:
        """Dead letters of one category or process, or of all.

        Raises:
            Usage: the cluster has no dead letters of that name.
        """
        if category and category not in self._known:
            raise unknown("category or process with dead letters in the log called", category, self._known)
        for name in [category] if category else self._known:
            yield from (letter for letter in self._letters(name).read() if letter.is_listed)

    def kept(self, category: str = "") -> dict[str, Retention]:
        """Retention of the dead letters of one category or process, or of all."""
        with ClusterAdmin(self._settings) as cluster:
            return {name: kept(cluster, name) for name in ([category] if category else self._known)}

    def of(self, letter: Letter) -> Any:
        """The topic of dead letters that a letter is in."""
        return self._letters(letter.record.topic.removesuffix(_DEAD))

    def chosen(self, which: Sequence[str]) -> list[Letter]:
        """Letters named by address or by category, each once.

        Raises:
            Usage: there is no such letter.
        """
        found: dict[Any, Letter] = {}
        for text in dict.fromkeys(which):
            place = None if text in self._known else read_address(text, "a dead letter; see: leftfold dead list")
            category = text if place is None else place.topic.removesuffix(_DEAD)
            letters = {letter.place: letter for letter in self.letters(category)}
            if place is not None and place not in letters:
                raise Usage(f"{place} is no dead letter; those there are: leftfold dead list {category} --all")
            found |= letters if place is None else {place: letters[place]}
        return list(found.values())

    def waiting(self, which: Sequence[str]) -> list[Letter]:
        """Named letters that were neither resent nor discarded.

        Raises:
            Usage: a letter that was named by its address was handled already.
        """
        letters = self.chosen(which)
        for letter in letters:
            if letter.handled and str(letter.place) in which:
                raise Usage(f"{letter.place} is {letter.handled} already, {letter.why}; nothing was changed")
        return [letter for letter in letters if not letter.handled]

    def sendable(self, which: Sequence[str]) -> list[Letter]:
        """Named letters that can be resent; an event of which no input was made belongs to no instance.

        Raises:
            Usage: a letter that was named by its address cannot be resent.
        """
        letters = self.waiting(which)
        for letter in letters:
            if letter.is_event and str(letter.place) in which:
                raise Usage(
                    f"{letter.place} is an event without an instance ({letter.reason}), so it cannot be sent again; "
                    f"note what was done about it: leftfold dead discard '{letter.place}' --reason WHY"
                )
        return [letter for letter in letters if letter.is_input]

    def _letters(self, category: str) -> Any:
        return DeadLetters(category, self._settings)


dead = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at dead letters; send them again or discard them."
)

_SHOWN = 10
_Which = Annotated[
    list[str], typer.Argument(metavar="LETTER...", help="As in 'baskets.dead[2]@7', or a category: all that wait.")
]


@dead.command(
    "list",
    epilog=examples(
        "leftfold dead list                    of all categories and processes, by reason",
        "leftfold dead list baskets --all      also those that were handled",
        "leftfold dead list --json | jq -r .reason | sort | uniq -c",
    ),
)
def list_(
    category: Annotated[str, typer.Argument(metavar="[CATEGORY]", help="A category or process; else all.")] = "",
    handled: Annotated[bool, typer.Option("--all", help="Also those that were sent again or discarded.")] = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by reason.

    Exit code 1 when some wait.

    Events of which routers could make no input are among them: they cannot be sent again. Not among them are events
    parked by reactions: leftfold reactions parked, and events that routers skip: leftfold log skip.
    """
    from leftfold.runtime.console import amount, emit, lasting, note, say, styled

    burials = Burials(kafka)
    found = [letter for letter in burials.letters(category) if handled or not letter.handled]
    kept = burials.kept(category)
    reasons: dict[tuple[str, str, str], list[Letter]] = {}
    for letter in found:
        if as_json:
            emit(_row(letter, kept))
        reasons.setdefault((letter.record.topic, letter.reason, letter.handled), []).append(letter)
    for (topic, reason, done), letters in reasons.items() if not as_json else ():
        counted = f"{amount(len(letters), 'letter')}{f', {done}' if done else ''}"
        say(styled(topic, bold=True), f"  {counted}: {reason}")
        more = f" and {len(letters) - _SHOWN} more" if len(letters) > _SHOWN else ""
        say(f"  {' '.join(str(letter.place) for letter in letters[:_SHOWN])}{more}")
    waiting = sum(not letter.handled for letter in found)
    if not as_json:
        note(f"look at one: leftfold dead show '{found[0].place}'" if found else "there are no dead letters that wait")
        for name, one in kept.items():
            lasts = f", which are kept for {lasting(one.seconds)}" if one.seconds else ""
            if one.deleted:
                note(f"of {name} up to {one.deleted:,} older letters are deleted{lasts}")
    raise typer.Exit(1 if waiting else 0)


@dead.command(
    epilog=examples(
        "leftfold dead show 'baskets.dead[2]@7'", "leftfold dead show 'baskets.dead[2]@7' --json | jq .value"
    )
)
def show(
    which: Annotated[str, typer.Argument(metavar="LETTER", help="As in 'baskets.dead[2]@7'.")],
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter: reason, headers, bytes."""
    import base64
    import json
    from datetime import UTC, datetime

    from leftfold.runtime.console import emit, pairs, say, say_lines

    burials = Burials(kafka)
    (letter,) = burials.chosen([which])
    value = burials.of(letter).original(letter).value or b""
    row = _row(letter, burials.kept(letter.record.topic.removesuffix(names.dead(""))))
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = None
    if as_json:
        headers = {name: letter.text(name) for name, _ in letter.record.headers}
        emit({**row, "headers": headers, "value": read, "bytes": base64.b64encode(value).decode()})
        return
    appended, leaves = (
        ms and datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
        for ms in (letter.record.time, row["leaves"])
    )
    pairs({name: value for name, value in {**row, "appended": appended, "leaves": leaves}.items() if value})
    say()
    pairs({name: letter.text(name) for name, _ in letter.record.headers if not name.startswith("dead_")})
    say()
    say(f"{len(value):,} bytes: {value!r}")
    if read is not None:
        say_lines(json.dumps(read, indent=2, ensure_ascii=False).split("\n"))


@dead.command(
    epilog=examples(
        "leftfold dead resend 'baskets.dead[2]@7'          after the cause is fixed",
        "leftfold dead resend baskets --yes --json         all that wait",
        "leftfold dead resend 'baskets.dead[2]@7' --new-id",
    )
)
def resend(
    which: _Which,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Under a new id: it counts, whatever became of the old one.")
    ] = False,
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again, byte by byte.

    Each goes to the topic and partition that it was taken from.

    A command keeps its id: if its client has sent it again meanwhile, and workers still know the answer, it counts
    once. It does not count as late, and no client is answered. The letter stays, marked as sent again; if it fails
    again, that makes another letter.
    """
    from leftfold.cli.options import agreed, signed
    from leftfold.engine.processing.command_wire import command_id
    from leftfold.runtime.console import amount, emit, note, say

    why, burials = f"{signed(by, reason or 'sent again')}: {reason or 'sent again'}", Burials(kafka)
    letters = burials.sendable(which)
    if letters:
        agreed(f"send {amount(len(letters), 'dead letter')} again, to be decided now?", yes=yes)
    for letter in letters:
        offset, id_ = burials.of(letter).resend(letter, why, id_=command_id() if new_id else "")
        if as_json:
            emit({"letter": str(letter.place), "offset": offset, "id": id_, "new_id": new_id})
        else:
            say(f"{letter.place} is sent again under {'the new' if new_id else 'its own'} id {id_}")
    if not letters and not as_json:
        note("no dead letter waits there")


@dead.command(
    epilog=examples(
        "leftfold dead discard 'baskets.dead[2]@7' --reason \"a test of the gateway\"",
        'leftfold dead discard baskets --reason "ticket 4711" --yes     all that wait',
    )
)
def discard(
    which: _Which,
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark dead letters as discarded.

    They stay in their topic, and are no longer listed.
    """
    from leftfold.cli.options import agreed, signed
    from leftfold.runtime.console import amount, emit, note, say

    why, burials = f"{signed(by, reason)}: {reason}", Burials(kafka)
    letters = burials.waiting(which)
    if letters:
        agreed(f"discard {amount(len(letters), 'dead letter')}?", yes=yes)
    for letter in letters:
        burials.of(letter).discard(letter, why)
        if as_json:
            emit({"letter": str(letter.place), "why": why})
        else:
            say(f"{letter.place} is discarded, {why}")
    if not letters and not as_json:
        note("no dead letter waits there")


def _row(letter: Letter, kept: Mapping[str, Retention]) -> dict[str, Any]:
    leaves = kept[letter.record.topic.removesuffix(names.dead(""))].leaves(letter)
    return {
        "letter": str(letter.place),
        "reason": letter.reason,
        "source": letter.source,
        "type": letter.text("ce_type"),
        "key": (letter.record.key or b"").decode(errors="replace"),
        "id": letter.text("ce_id"),
        "time": letter.text("ce_time"),
        "appended": letter.record.time,
        "leaves": leaves and int(1000 * leaves),
        "handled": letter.handled,
        "why": letter.why,
    }
