"""Dead letters of commands and process inputs: those that wait, when they are deleted, and which may be sent again."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from leftfold.engine.processing.command_wire import command_id
from leftfold.engine.processing.process_wire import ACK, DUE, NACK
from leftfold.errors import ContractError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import DeadLetters, LetterTransactions
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.messages import Command, Event
from leftfold.model.position import RecordAddress
from leftfold.ports.message_codec import MessageCodec
from leftfold.ports.outgoing import Letter, letters_in, offset_in
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import kafka_settings
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.topics import known_settings
from leftfold.runtime.project import Usage, read_address, unknown
from leftfold.safety import shown

__all__ = [
    "AllDeadLetters",
    "Retention",
    "checked_value",
    "dead_waiting",
    "group_hash",
    "group_of",
    "standing_still",
    "types_of",
    "why_refused",
]

_DEAD = names.dead("")
_NEWS, _SOON = 24 * 3600.0, 7 * 24 * 3600.0
"""Seconds: letters younger than a day are reported, and letters that will be deleted within a week."""


_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\b\d[\w.,:+-]*|\[[^\[\]]*\]")


def group_of(reason: str) -> str:
    """A reason without the values in it, so that the same failure of several letters is one group."""
    return _VALUES.sub("…", reason)


def group_hash(reason: str) -> str:
    """A short name of the group of a reason, which stays the same: eight hexadecimal digits."""
    return sha256(group_of(reason).encode()).hexdigest()[:8]


class Retention(NamedTuple):
    """The retention of dead letters: how many offsets were deleted, and seconds they are kept; None = for ever.

    `warning` says that this login may not see how long they are kept.
    """

    deleted: int
    seconds: float | None
    warning: str = ""

    def leaves(self, letter: Letter) -> float | None:
        """When a letter is deleted, in seconds since 1970 or somewhat later; None = never."""
        return None if self.seconds is None else letter.record.time / 1000 + self.seconds


def _retention(state: ClusterState, name: str) -> Retention:
    """Retention of the dead letters of a category or process; for ever where the topic does not exist."""
    topic = names.dead(name)
    if topic not in state.topics:
        return Retention(0, None)
    configs, warning = known_settings(state.admin, [topic])
    lasting = int(configs[topic]["retention.ms"]) if topic in configs else -1
    deleted = sum(state.starts([topic]).offsets[topic].values())
    return Retention(deleted, None if lasting < 0 else lasting / 1000, warning)


def dead_waiting(state: ClusterState, name: str) -> tuple[int, list[str]]:
    """How many dead letters wait among the last ones of each partition, and the problems to report.

    Reported are new letters, and letters that will soon be deleted.
    """
    records = state.letters(names.dead(name))
    found = [letter for letter in letters_in(records) if letter.is_listed and not letter.handled]
    if not found:
        return 0, []
    problems, now = list[str](), time.time()
    first, newest = min(found, key=_time), max(found, key=_time)
    retention = _retention(state, name)
    leaves = retention.leaves(first)
    if retention.warning:
        problems.append(f"it is not known when its dead letters are deleted: {retention.warning}")
    if (ago := now - _time(newest)) < _NEWS:
        trace = f"leftfold log trace {shlex.quote(id_)}, " if (id_ := newest.text("ce_id")) else ""
        waiting = f"{amount(len(found), 'dead letter')}, the last one {lasting(ago)} ago: {newest.reason}"
        problems.append(f"{waiting}; see: {trace}leftfold dead list {name}")
    if leaves is not None and leaves < now + _SOON:
        waited = f"{first.place} has waited for {lasting(now - _time(first))}"
        problems.append(f"{waited}, and is deleted in {lasting(leaves - now)}; see: leftfold dead list {name}")
    return len(found), problems


def _time(letter: Letter) -> float:
    return letter.record.time / 1000


def standing_still(state: ClusterState, name: str, version: int) -> list[str]:
    """Problems for events that a category's workers cannot fold, which keep their partitions from being served."""
    events = names.events(name)
    at = {
        (letter.record.partition, offset): letter
        for letter in letters_in(state.letters(names.dead(name)))
        if not letter.handled and (offset := offset_in(letter.record, events)) is not None
    }
    # If the state topic has advanced since, other code could fold the event.
    found = {p: one.events for p, one in state.checkpoints(names.state(name, version)).items()} if at else {}
    return [
        f"{place} cannot be folded, so {names.commands(name)}[{partition}] is not served: {letter.reason}; start code "
        f"that can fold it, or have it passed over: leftfold log skip {name} '{place}' --reason WHY"
        for (partition, offset), letter in sorted(at.items())
        if found.get(partition, 0) <= offset and (place := RecordAddress(events, partition, offset))
    ]


def types_of(apps: Iterable[App], name: str) -> list[type[Event | Command]]:
    """The classes of what a category or process takes: commands, or events; empty when these Apps have neither."""
    taken = {decider.name: decider.commands for app in apps for decider in app.deciders}
    routed = {process.name: process.events for app in apps for process in app.processes}
    return [*taken.get(name, ()), *routed.get(name, ())]


def checked_value(apps: Iterable[App], letter: Letter, text: str) -> bytes:
    """Another body for a dead letter, after a check against the class of its type.

    Raises:
        Usage: no App of these takes such letters, it is no such message, or it names another key.
    """
    name, type_ = letter.record.topic.removesuffix(_DEAD), letter.text("ce_type")
    codec: MessageCodec[Any] = MessageCodec(types_of(apps, name))
    if not codec.classes:
        raise Usage(f"{letter.place} is a letter of {name}, which no App here has; name its App: --app MODULE:NAME")
    body = text.encode()
    try:
        message = codec.decode(type_.encode(), body)
    except ContractError as error:
        raise Usage(f"{letter.place}: {error}. Nothing was sent") from error
    key, field = (letter.record.key or b"").decode(errors="replace"), type(message).__leftfold__.key
    named = getattr(message, field)
    for process in [process for app in apps for process in app.processes if process.name == name]:
        field = f"{name}.correlate"
        try:
            named = process.correlate(message)
        except Exception as error:
            raise Usage(f"{letter.place}: {field} failed on it: {shown(error)}. Nothing was sent") from error
    if named != key:
        raise Usage(f"{letter.place} is of {key!r}, and {field} is {named!r}: it keeps its key; nothing was sent")
    return body


_OVER = {ACK.decode(): "an answer", NACK.decode(): "a refusal", DUE.decode(): "a timer that was due"}


def why_refused(letter: Letter) -> str:
    """Why a letter cannot be sent again, and what to do instead; '' when it can."""
    discard = f"leftfold dead discard '{letter.place}' --reason WHY"
    if letter.is_event:
        return (
            f"{letter.place} is an event without an instance ({letter.reason}), so it cannot be sent again; "
            f"note what was done about it: {discard}"
        )
    if what := _OVER.get(letter.text("ce_type"), ""):
        process = letter.record.topic.removesuffix(_DEAD)
        return (
            f"{letter.place} is {what}, for which {process} no longer waits, so it cannot be sent again; send the "
            f"command that it calls for: leftfold send COMMAND JSON, and then: {discard}"
        )
    return ""


class AllDeadLetters:
    """Dead letters of every category and process: commands, inputs, and events of which routers made no input.

    Args:
        only: of these names; None = of all that the cluster has.
    """

    def __init__(self, kafka: str | None, only: Collection[str] | None = None) -> None:
        self._settings = kafka_settings(kafka)
        with ClusterAdmin(self._settings) as cluster:
            topics: dict[str, int] = cluster.topics()
        known = sorted(name.removesuffix(_DEAD) for name in topics if name.endswith(_DEAD))
        self._known = [name for name in known if only is None or name in only]

    def letters(self, category: str = "", most: int = sys.maxsize, *, values: bool = True) -> Iterator[Letter]:
        """Dead letters of one category or process, or of all, among the last `most` offsets of each partition.

        Args:
            values: whether their values are kept, which may be too many for the memory.

        Raises:
            Usage: the cluster has no dead letters of that name.
        """
        if category:
            self._check(category)
        for name in [category] if category else self._known:
            yield from (letter for letter in self._letters(name).read(most, values=values) if letter.is_listed)

    def kept(self, category: str = "") -> dict[str, Retention]:
        """Retention of the dead letters of one category or process, or of all."""
        state = ClusterState(self._settings)
        return {name: _retention(state, name) for name in ([category] if category else self._known)}

    def original(self, letter: Letter) -> RawRecord:
        """The original record of a letter.

        Raises:
            ContractError: it is no longer there.
        """
        return self._letters(_category(letter)).original(letter)

    def chosen(self, which: Sequence[str]) -> list[Letter]:
        """Letters named by address or by category, each once.

        Raises:
            Usage: there is no such letter.
        """
        found: dict[RecordAddress, Letter] = {}
        named = [
            text if text in self._known else read_address(text, "a dead letter; see: leftfold dead list")
            for text in dict.fromkeys(which)
        ]
        places = {place for place in named if isinstance(place, RecordAddress)}
        read: dict[RecordAddress, Letter] = {}
        for category in {place.topic.removesuffix(_DEAD) for place in places}:
            self._check(category)
            read |= self._letters(category).at({place for place in places if place.topic == names.dead(category)})
        for one in named:
            if isinstance(one, str):
                found |= {letter.place: letter for letter in self.letters(one)}
            elif one not in read or not read[one].is_listed:
                category = one.topic.removesuffix(_DEAD)
                raise Usage(f"{one} is no dead letter; those there are: leftfold dead list {category} --all")
            else:
                found[one] = read[one]
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

    def sendable(self, which: Sequence[str], *, leave_out: bool = False) -> tuple[list[Letter], list[str]]:
        """Named letters that can be resent, and why others of a named category cannot.

        Args:
            leave_out: letters that were named by their addresses may be among those others.

        Raises:
            Usage: a letter that was named by its address cannot be resent.
        """
        found, refused = list[Letter](), list[str]()
        for letter in self.waiting(which):
            if not (why := why_refused(letter) or self._why_lost(letter)):
                found.append(letter)
            elif str(letter.place) in which and not leave_out:
                raise Usage(why)
            else:
                refused.append(why)
        return found, refused

    def _why_lost(self, letter: Letter) -> str:
        """Why the original of a letter cannot be sent, and what to do instead; '' when it is there."""
        try:
            self.original(letter)
        except ContractError as error:
            return (
                f"{letter.place} was too large to copy, and its original is lost ({error}), so it cannot be sent "
                f"again; note what was done about it: leftfold dead discard '{letter.place}' --reason WHY"
            )
        return ""

    def resend(
        self, letters: Sequence[Letter], why: str, *, new_id: bool = False, body: bytes | None = None
    ) -> Iterator[tuple[Letter, int, str, bool]]:
        """Sends letters again, each in a transaction; gives each with its new offset, its id, and whether that is new.

        Args:
            new_id: each under a new id, except commands of processes: a process knows the answer by the id.
            body: another body of the only letter.

        Raises:
            ContractError: one of them does not wait any more; nothing was changed.
            Fenced: another operator is at work on them, and the rest is left alone.
        """
        for letter, handler in self._handled(letters):
            fresh = command_id() if new_id else ""
            offset, id_ = handler.resend(letter, why, id_=fresh, body=body)
            yield letter, offset, id_, id_ == fresh

    def discard(self, letters: Sequence[Letter], why: str) -> Iterator[Letter]:
        """Marks letters as discarded; gives each behind it.

        Raises:
            ContractError, Fenced: as `resend`.
        """
        for letter, handler in self._handled(letters):
            handler.discard(letter, why)
            yield letter

    def _handled(self, letters: Sequence[Letter]) -> Iterator[tuple[Letter, LetterTransactions]]:
        by_category = groupby(sorted(letters, key=_category), key=_category)
        found = [(category, list(ones)) for category, ones in by_category]
        handlers = [(LetterTransactions(category, self._settings, ones), ones) for category, ones in found]
        for handler, ones in handlers:
            yield from ((letter, handler) for letter in ones)

    def _check(self, category: str) -> None:
        if category not in self._known:
            raise unknown("category or process with dead letters in the log called", category, self._known)

    def _letters(self, category: str) -> DeadLetters:
        return DeadLetters(category, self._settings)


def _category(letter: Letter) -> str:
    return letter.record.topic.removesuffix(_DEAD)
