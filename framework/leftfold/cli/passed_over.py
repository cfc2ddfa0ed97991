"""Events that nobody can route and that somebody has said are to be passed over: letters in `{process}.dead`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from leftfold import names
from leftfold.cli.failures import Usage
from leftfold.cli.last_records import last_records
from leftfold.codec import header
from leftfold.connection import ring
from leftfold.engine.dead_letter import Letter, dead_letter
from leftfold.engine.router import Router, Unusable
from leftfold.position import Place
from leftfold.errors import ContractError
from leftfold.partitioner import partition_of
from leftfold.ports import RawRecord
from leftfold.process import Process

__all__ = ["Unroutable", "pass_over", "passed_over", "place_in", "stopping", "unroutable"]

_PLACE = re.compile(r"(?P<topic>[^\[\]/]+)(?:\[(?P<p>[0-9]+)\]@|/(?P<q>[0-9]+)/)(?P<offset>[0-9]{1,18})")
_ROOM = 1_000_000
"""Brokers take a little more by default."""


class Unroutable(NamedTuple):
    """An event that ends the routers of a process, and why."""

    place: Place
    record: RawRecord
    why: str


def passed_over(settings: Any, process: str) -> frozenset[str]:
    """Where what nobody takes stands, as `topic/partition/offset`: inputs that were dead-lettered are among it."""
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        letters = last_records(cluster, settings, names.dead(process), sys.maxsize)
        return frozenset(header(letter.headers, "dead_source").decode(errors="replace") for letter in letters)


def place_in(text: str, what: str = "an event; write it as routers tell it: 'orders.events[2]@7'") -> Place:
    """The place that was typed.

    Raises:
        Usage: it is none.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Usage(f"{text!r} is no place of {what}")
    return Place(found["topic"], int(found["p"] or found["q"]), int(found["offset"]))


def unroutable(app: str, process: Process[Any, Any, Any], place: Place, settings: Any) -> Unroutable:
    """The event that stands there.

    Raises:
        Usage: the process does not listen to it, or it can be routed. ContractError: nothing stands there.
    """
    topics = [names.events(category) for category in process.categories]
    if place.topic not in topics:
        raise Usage(f"process {process.name} does not listen to {place.topic}; it does to {', '.join(topics)}")
    record: RawRecord = ring("leftfold.kafka.one_record").record_at(settings, *place)
    try:
        Router(app, process, lambda key: 0).route(record)
    except Unusable as error:
        raise Usage(
            f"routers of {process.name} go on behind {place} by themselves: {error}; nothing was changed. Its dead "
            f"letter: leftfold dead list {process.name}"
        ) from error
    except ContractError as error:
        return Unroutable(place, record, str(error))
    raise Usage(f"{place} can be routed to {process.name}, so it is not passed over; nothing was changed")


def stopping(decider: str, places: Sequence[Place], settings: Any) -> list[Letter]:
    """The letters of workers that stand still at these events of their category, which they cannot fold.

    Raises:
        Usage: no worker has said so of one of them.
    """
    events, found = names.events(decider), list[Letter]()
    letters = ring("leftfold.kafka.dead_letters").DeadLetters(decider, settings).read()
    waiting = [letter for letter in letters if not letter.handled]
    for place in places:
        here = [letter for letter in waiting if letter.source == f"{place.topic}/{place.partition}/{place.offset}"]
        if not here or place.topic != events:
            raise Usage(
                f"no worker of {decider} stands still at {place}, so it is not passed over; nothing was changed. Where "
                f"they do: leftfold status"
            )
        found += here
    return found


def pass_over(process: str, found: Unroutable, why: str, settings: Any) -> None:
    """Has routers pass over an event, from their next start on."""
    dead = names.dead(process)
    with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
        partition = partition_of(found.record.key or b"", cluster.partitions(dead))
    letter = dead_letter(found.record, f"{why}; {found.why}", partition, _ROOM)
    ring("leftfold.kafka.one_record").write_record(settings, dead, letter)
