"""What `leftfold dead` puts together: the topics of dead letters in the cluster, and the letters that were named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from leftfold import names
from leftfold.cli.console import amount, lasting
from leftfold.cli.failures import Usage, unknown
from leftfold.cli.last_records import last_records
from leftfold.cli.passed_over import place_in
from leftfold.connection import kafka_settings, ring
from leftfold.engine.dead_letter import Letter, letters_in, offset_in
from leftfold.position import Place
from leftfold.position import Position

__all__ = ["Burials", "dead_waiting", "standing_still"]

_DEAD = names.dead("")
_LAST = 2000
"""How many offsets of each partition a look reads at most."""
_NEWS, _SOON = 24 * 3600.0, 7 * 24 * 3600.0
"""Those of the last day are told of, and those that leave within a week."""


class Kept(NamedTuple):
    """How many offsets of a topic of dead letters are gone, and seconds that letters are kept; None = for ever."""

    gone: int
    seconds: float | None

    def leaves(self, letter: Letter) -> float | None:
        """When a letter leaves, in seconds since 1970 or somewhat later; None = never."""
        return None if self.seconds is None else letter.record.time / 1000 + self.seconds


def kept(cluster: Any, name: str) -> Kept:
    """What becomes of the dead letters of a category or process with time; those without a topic are kept."""
    topic = names.dead(name)
    if not cluster.partition_counts([topic]):
        return Kept(0, None)
    lasting = int(cluster.configs([topic])[topic]["retention.ms"])
    starts: Position = cluster.starts([topic])
    return Kept(sum(starts.offsets[topic].values()), None if lasting < 0 else lasting / 1000)


def dead_waiting(cluster: Any, settings: Any, name: str) -> tuple[int, list[str]]:
    """How many dead letters wait among the last ones of each partition, and what is to be said of them.

    New ones are told of, and those that are about to leave.
    """
    records = last_records(cluster, settings, names.dead(name), _LAST)
    found = [letter for letter in letters_in(records) if letter.is_listed and not letter.handled]
    if not found:
        return 0, []
    told, now = list[str](), time.time()
    first, newest = min(found, key=_time), max(found, key=_time)
    leaves = kept(cluster, name).leaves(first)
    if (ago := now - _time(newest)) < _NEWS:
        trace = f"leftfold log trace {id_}, " if (id_ := newest.text("ce_id")) else ""
        waiting = f"{amount(len(found), 'dead letter')}, the last one {lasting(ago)} ago: {newest.reason}"
        told.append(f"{waiting}; see: {trace}leftfold dead list {name}")
    if leaves is not None and leaves < now + _SOON:
        waited = f"{first.place} has waited for {lasting(now - _time(first))}"
        told.append(f"{waited}, and is deleted in {lasting(leaves - now)}; see: leftfold dead list {name}")
    return len(found), told


def _time(letter: Letter) -> float:
    return letter.record.time / 1000


def standing_still(cluster: Any, settings: Any, name: str, version: int) -> list[str]:
    """What is to be done about events that a category's workers cannot fold: their partitions are not served."""
    events, state = names.events(name), names.state(name, version)
    records = last_records(cluster, settings, names.dead(name), _LAST)
    at = {
        (letter.record.partition, offset): letter
        for letter in letters_in(records)
        if not letter.handled and (offset := offset_in(letter.record, events)) is not None
    }
    # Where states have gone on since, other code could fold what that code could not.
    count = cluster.partition_counts([state]).get(state, 0) if at else 0
    folded: dict[int, int] = ring("leftfold.kafka.states").folded(settings, state, count)
    return [
        f"{place} cannot be folded, so {names.commands(name)}[{partition}] is not served: {letter.reason}; start code "
        f"that can fold it, or have it passed over: leftfold log skip {name} '{place}' --reason WHY"
        for (partition, offset), letter in sorted(at.items())
        if folded.get(partition, 0) <= offset and (place := Place(events, partition, offset))
    ]


class Burials:
    """Dead letters of every category and process: commands, inputs, and events of which routers made no input."""

    def __init__(self, kafka: str | None) -> None:
        self._settings = kafka_settings(kafka)
        with ring("leftfold.kafka.cluster").Cluster(self._settings) as cluster:
            topics: dict[str, int] = cluster.topics()
        self._known = sorted(name.removesuffix(_DEAD) for name in topics if name.endswith(_DEAD))

    def letters(self, category: str = "") -> Iterator[Letter]:
        """Those of one category or process, or of all.

        Raises:
            Usage: the cluster has none such.
        """
        if category and category not in self._known:
            raise unknown("category or process with dead letters in the log called", category, self._known)
        for name in [category] if category else self._known:
            yield from (letter for letter in self._letters(name).read() if letter.is_listed)

    def kept(self, category: str = "") -> dict[str, Kept]:
        """How long letters are kept, of one category or process, or of all."""
        with ring("leftfold.kafka.cluster").Cluster(self._settings) as cluster:
            return {name: kept(cluster, name) for name in ([category] if category else self._known)}

    def of(self, letter: Letter) -> Any:
        """The topic that a letter is in."""
        return self._letters(letter.record.topic.removesuffix(_DEAD))

    def chosen(self, which: Sequence[str]) -> list[Letter]:
        """The letters that were named, by place or by category, each once.

        Raises:
            Usage: there is no such letter.
        """
        found: dict[Any, Letter] = {}
        for text in dict.fromkeys(which):
            place = None if text in self._known else place_in(text, "a dead letter; see: leftfold dead list")
            category = text if place is None else place.topic.removesuffix(_DEAD)
            letters = {letter.place: letter for letter in self.letters(category)}
            if place is not None and place not in letters:
                raise Usage(f"{place} is no dead letter; those there are: leftfold dead list {category} --all")
            found |= letters if place is None else {place: letters[place]}
        return list(found.values())

    def waiting(self, which: Sequence[str]) -> list[Letter]:
        """Those among them with which nothing was done yet.

        Raises:
            Usage: one that was named by its place was handled already.
        """
        letters = self.chosen(which)
        for letter in letters:
            if letter.handled and str(letter.place) in which:
                raise Usage(f"{letter.place} is {letter.handled} already, {letter.why}; nothing was changed")
        return [letter for letter in letters if not letter.handled]

    def sendable(self, which: Sequence[str]) -> list[Letter]:
        """Those among them that can be sent again, too: an event of which no input was made belongs to no instance.

        Raises:
            Usage: one that was named by its place cannot.
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
        return ring("leftfold.kafka.dead_letters").DeadLetters(category, self._settings)
