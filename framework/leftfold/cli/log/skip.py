"""`leftfold log skip`: lets routers and workers skip events that are lost or that no code can route or fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from leftfold.cli.options import (
    AppOption,
    ByOption,
    JsonOption,
    KafkaOption,
    ReasonOption,
    YesOption,
    agreed,
    examples,
    signed,
)
from leftfold.engine.log_gaps import unreachable
from leftfold.engine.processing.process_wire import Router, Unusable
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import DeadLetters, record_at, write_record
from leftfold.kafka.administration.groups import Groups
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.position import Position, RecordAddress
from leftfold.model.process import Process
from leftfold.ports.outgoing import PASSED, Letter, dead_letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, emit, note
from leftfold.runtime.operations.timers import process_of
from leftfold.runtime.project import Usage, load_app, read_address

__all__ = ["EXAMPLES", "skip"]

EXAMPLES = examples(
    "leftfold log skip newsletter          asks first, naming the lost events, which will never reach the process",
    "leftfold log skip newsletter --yes --json",
    "leftfold log skip newsletter 'orders.events[2]@7' --reason \"ticket 4711\"     an event that cannot be read",
    "leftfold log skip orders 'orders.events[2]@7' --reason \"ticket 4712\"     an event at which workers stand still",
)


def skip(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The process, or the decider.")],
    events: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EVENT]...", help="Events that cannot be routed or folded; else all that are lost."),
    ] = None,
    reason: ReasonOption = "",
    by: ByOption = "",
    yes: YesOption = False,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Skip events that are lost or cannot be read.

    The routers of a process, or the workers of a decider, skip these events: those that are lost, or those named.

    A router whose next events were trimmed stops, since they would never reach the process. If the process does not
    need them, because it is younger than they are, skip them: routers then start where the topics start now. Stop the
    routers first.

    A router also stops at an event that it cannot read, or on which `correlate` fails. If no code will ever handle that
    event, name it: it goes to PROCESS.dead with the reason, and routers skip it when they are started again.

    A worker does not serve a partition whose events it cannot fold, since another program has written there; status
    names the event. Name it here: workers then skip it wherever it cannot be folded, and serve the partition within a
    minute. Do not skip an event of your own that your code cannot fold: correct the code, since later events need it.
    """
    whole, settings = load_app(app, having=[name]), kafka_settings(kafka)
    if any(decider.name == name for decider in whole.deciders):
        _skip_folded(name, events or [], reason, by, settings, yes=yes, as_json=as_json)
    elif events:
        _skip_named(whole, name, events, reason, by, settings, yes=yes, as_json=as_json)
    else:
        _skip_lost(whole, name, settings, yes=yes, as_json=as_json)


def _skip_named(
    app: App, name: str, events: Sequence[str], reason: str, by: str, settings: Any, *, yes: bool, as_json: bool
) -> None:
    actor, process = signed(by, reason), process_of(app, name)
    found = [_unroutable(app.name, process, read_address(text), settings) for text in dict.fromkeys(events)]
    for event in found:
        note(f"{event.place}: {event.why}")
    which = "this event" if len(found) == 1 else f"these {amount(len(found), 'event')}"
    agreed(f"{which} will never reach the process; have the routers of {name} pass over {which}?", yes=yes)
    for event in found:
        _pass_over(name, event, f"passed over by {actor}: {reason}", settings)
        if as_json:
            emit({"process": name, **event.place._asdict(), "why": event.why, "actor": actor, "reason": reason})
    if not as_json:
        note(f"kept in {names.dead(name)}; routers of {name} pass over {which} when they are started again")


def _skip_folded(
    name: str, events: Sequence[str], reason: str, by: str, settings: Any, *, yes: bool, as_json: bool
) -> None:
    if not events:
        raise Usage(f"which event? leftfold status names those at which workers of {name} stand still")
    actor = signed(by, reason)
    letters = _stopping(name, [read_address(text) for text in dict.fromkeys(events)], settings)
    reasons = {letter.source: letter.reason for letter in letters}
    for source, why in reasons.items():
        note(f"{source}: {why}")
    if letters:
        agreed("no state will ever know of what stands there; have it passed over?", yes=yes)
    kept = DeadLetters(name, settings)
    for letter in letters:
        kept.skip(letter, f"by {actor}: {reason}")
    for source, why in reasons.items():
        if as_json:
            emit({"decider": name, "source": source, "why": why, "actor": actor, "reason": reason})
    if letters and not as_json:
        note(f"kept in {names.dead(name)}; workers of {name} go on behind it within a minute")


def _skip_lost(app: App, name: str, settings: Any, *, yes: bool, as_json: bool) -> None:
    topics = [names.events(category) for category in process_of(app, name).categories]
    with Groups(settings) as groups:
        lost = _lost(groups, app.name, name, topics)
        for topic, partition, start, end in lost:
            note(f"{topic}[{partition}]: offsets {start} to {end - 1} are lost")
        if lost:
            agreed(f"these events will never reach the process; have the routers of {name} pass over them?", yes=yes)
            _check_idle(groups, app.name, name)
            ends = Position.union(Position.at(topic, p, end) for topic, p, _, end in lost)
            groups.set(names.routing(app.name, name), ends)
    if as_json:
        for topic, partition, start, end in lost:
            emit({"process": name, "topic": topic, "partition": partition, "from": start, "to": end})
    elif not lost:
        note(f"nothing is lost that routers of {name} should read")


def _check_idle(groups: Any, app: str, process: str) -> None:
    if at_work := groups.groups().get(names.routing(app, process), 0):
        raise InfrastructureError(
            f"process {process} has {amount(at_work, 'router')} at work; stop what runs them, then say it again"
        )


def _lost(groups: Any, app: str, process: str, topics: list[str]) -> list[tuple[str, int, int, int]]:
    """Events deleted from topics before routers read them: topic, partition, first offset, end offset."""
    there = [topic for topic in topics if topic in groups.topics()]
    at = groups.committed(names.routing(app, process), there)
    return [(gap.topic, gap.partition, gap.start, gap.end) for gap in unreachable(groups.starts(there), at)]


_MAX_BYTES = 1_000_000
"""Largest record of a dead letter in bytes; the brokers' default limit is slightly higher."""


class _Unroutable(NamedTuple):
    """An event that routers of a process cannot route, at which they end, with the cause."""

    place: RecordAddress
    record: RawRecord
    why: str


def _unroutable(app: str, process: Process[Any, Any, Any], place: RecordAddress, settings: Any) -> _Unroutable:
    """The event at an address that routers of a process cannot route."""
    topics = [names.events(category) for category in process.categories]
    if place.topic not in topics:
        raise Usage(f"process {process.name} does not listen to {place.topic}; it does to {', '.join(topics)}")
    record: RawRecord = record_at(settings, *place)
    try:
        Router(app, process, lambda key: 0).route(record)
    except Unusable as error:
        raise Usage(
            f"routers of {process.name} go on behind {place} by themselves: {error}; nothing was changed. Its dead "
            f"letter: leftfold dead list {process.name}"
        ) from error
    except ContractError as error:
        return _Unroutable(place, record, str(error))
    raise Usage(f"{place} can be routed to {process.name}, so it is not passed over; nothing was changed")


def _stopping(decider: str, places: Sequence[RecordAddress], settings: Any) -> list[Letter]:
    """The dead letters of workers that stopped at these events of their category, which they cannot fold.

    Events that are passed over already are left out, so that a command that was interrupted can be typed again.
    """
    events, found = names.events(decider), list[Letter]()
    letters = DeadLetters(decider, settings).read()
    waiting = [letter for letter in letters if not letter.handled]
    done = {letter.source for letter in letters if letter.handled == PASSED}
    for place in places:
        here = [letter for letter in waiting if letter.source == place.source]
        if not here and place.source in done:
            note(f"{place} is passed over already")
            continue
        if not here or place.topic != events:
            raise Usage(
                f"no worker of {decider} stands still at {place}, so it is not passed over; nothing was changed. Where "
                f"they do: leftfold status"
            )
        found += here
    return found


def _pass_over(process: str, found: _Unroutable, why: str, settings: Any) -> None:
    """Makes routers skip an event from their next start on, by writing a dead letter for it."""
    dead = names.dead(process)
    with ClusterAdmin(settings) as cluster:
        partition = partition_of(found.record.key or b"", cluster.partitions(dead))
    letter = dead_letter(found.record, f"{why}; {found.why}", partition, _MAX_BYTES)
    write_record(settings, dead, letter)
