"""Properties that every decider, process and cross-stream view must have, as checks of your own histories."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

from leftfold.engine.processing.command_processor import Accepted, Duplicate, Refused, decide
from leftfold.engine.processing.command_wire import Received, nack
from leftfold.engine.processing.process_instance import Instance, InstanceCodec, SentCommand
from leftfold.engine.processing.process_reactor import Failed, InputSkipped, Reactor
from leftfold.engine.processing.process_wire import NACK, Input
from leftfold.engine.processing.stream_state import Stream, StreamCodec
from leftfold.errors import DomainError
from leftfold.model.decider import Decider
from leftfold.model.messages import Command, Event
from leftfold.model.process import Process, Rejected
from leftfold.model.view import View
from leftfold.ports.message_codec import MessageCodec
from leftfold.safety import shown
from leftfold.testing.specification import check_input, events_text, fold, fold_rows

__all__ = ["check_deciding_twice", "check_interleavings", "check_redelivery"]


def check_deciding_twice(decider: Decider[Any, Any, Any], commands: Iterable[Command]) -> None:
    """Decides each command twice under one id: the second adds no event, and equal states give equal events.

    The stream goes through its stored form in between, so this also proves that each state can be stored.

    Raises:
        AssertionError: a decision depends on something other than command and state, storing changed the state, or
            a function changed the state that it was given.
        Exception: a command cannot be decided; the error is that of `decide` or `evolve`.
    """
    codec: MessageCodec[Any] = MessageCodec(decider.events)
    streams = StreamCodec(decider.state, decider.initial_state)
    held: dict[str, Stream[Any]] = {}
    for number, command in enumerate(commands):
        key = getattr(command, command.__leftfold__.key)
        received = Received(command, key, f"c{number}", "body", b"2026-01-01T00:00:00Z", b"", b"")
        before = held.get(key, streams.new())
        stored = streams.encode(before)
        one, other = before.copy(), streams.decode(stored, 0.0)
        first, second = (decide(decider, codec, stream, received, 0.0) for stream in (one, other))
        assert streams.encode(before) == stored, f"{command!r}: {decider.name} {_CHANGED} {before.state!r}"
        if isinstance(first, Refused) and isinstance(second, Refused) and not isinstance(first.error, DomainError):
            cause = first.error.__cause__
            raise first.error if cause is None or isinstance(cause, DomainError) else cause
        assert first == second, (
            f"{command!r} gave\n{_outcome(codec, first)}\nand then\n{_outcome(codec, second)}\ndecide must be pure"
        )
        _check_stored(one.state, streams.decode(streams.encode(one), 0.0).state)
        assert one.state == other.state, (
            f"{command!r} led to {one.state!r} and then to {other.state!r} from equal states; evolve must be pure"
        )
        if isinstance(first, Accepted):
            again = decide(decider, codec, one.copy(), received, 0.0)
            assert isinstance(again, Duplicate), f"{command!r} sent again with one id gave {again}"
        held[key] = one


def check_interleavings(view: View[Any, Any], *streams: Sequence[Event], tries: int = 50, seed: int = 0) -> None:
    """Folds the streams in random interleavings, each stream in its own order: the rows must be equal.

    Each stream is a list of its events: `check_interleavings(view, [first, second], [other])`.

    Engines store a row between two events, or keep it in memory: the rows must be equal then, too.

    Raises:
        AssertionError: the fold depends on the order between streams, or on whether a row has been stored meanwhile;
            the message names the rows, and the seed.
        TypeError: a stream is no list of events, or a list has events of two streams.
    """
    streams = tuple(_stream_of(stream) for stream in streams)

    def encoded(row: Any) -> object:
        return None if row is None else view.rows.encode(row)

    chance = random.Random(seed)  # a repeatable shuffle
    events = [event for stream in streams for event in stream]
    expected, unstored = fold(view, *events), fold_rows(view, events, is_stored=False)
    for key in expected.keys() | unstored.keys():
        assert encoded(expected.get(key)) == encoded(unstored.get(key)), (
            f"view {view.name} gives {expected.get(key)!r} for {key!r} if the row is stored between two events, but "
            f"{unstored.get(key)!r} if not; in a stored row, mappings are sorted by key and times are in UTC"
        )
    for number in range(tries):
        order = [index for index, stream in enumerate(streams) for _ in stream]
        chance.shuffle(order)
        heads = [iter(stream) for stream in streams]
        rows = fold(view, *(next(heads[index]) for index in order))
        different = {k for k in expected.keys() | rows.keys() if encoded(expected.get(k)) != encoded(rows.get(k))}
        for key in different:
            raise AssertionError(
                f"view {view.name} gives {rows.get(key)!r} for {key!r} in interleaving {number} of seed {seed}, but "
                f"{expected.get(key)!r} stream by stream; its fold must not depend on the order between streams"
            )


def check_redelivery(process: Process[Any, Any, Any], inputs: Iterable[Any]) -> None:
    """Delivers each input of one instance twice: the second has no effect, and equal states react equally.

    The instance goes through its stored form in between, so this also proves that its state can be stored.

    Raises:
        AssertionError: a reaction depends on something other than input and state, storing changed the state, a
            function changed the state that it was given, the inputs are of several business keys or of none, a command
            is rejected that was never sent, or one of them is no input of the process.
    """
    reactor, codec = Reactor(process), InstanceCodec(process.state, process.initial_state)
    instance, keys = codec.new(), set[str]()
    for number, what in enumerate(inputs):
        check_input(process, what, keys)
        given = _input(reactor, instance, what, number)
        stored = codec.encode(instance)
        one, other = instance.copy(), codec.decode(stored, 0.0)
        first, second = reactor.take(one, given), reactor.take(other, given)
        assert codec.encode(instance) == stored, f"{what!r}: process {process.name} {_CHANGED} {instance.state!r}"
        assert not isinstance(first, Failed), f"{what!r} cannot be taken: {first.error}"
        assert first == second, f"{what!r} led to {first} and then to {second}; react must be pure"
        _check_stored(one.state, codec.decode(codec.encode(one), 0.0).state)
        assert one == other, f"{what!r} led to {one!r} and then to {other!r} from equal states; evolve must be pure"
        again = reactor.take(one.copy(), given)
        assert isinstance(again, InputSkipped), f"{what!r} delivered again led to {again}"
        instance = one


_CHANGED = "changed the state that it was given; give another one, such as {**old, key: value}. It is now"


def _check_stored(state: object, read: object) -> None:
    assert read == state, f"storing changed the state {state!r} to {read!r}"


def _outcome(codec: MessageCodec[Any], outcome: Accepted | Duplicate | Refused) -> str:
    if isinstance(outcome, Accepted):
        return events_text([codec.decode(*event) for event in outcome.events])
    return f"  {shown(outcome.error)}"


def _stream_of(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events of one stream, checked."""
    found = () if isinstance(events, Event) else tuple(events)
    if isinstance(events, Event) or not all(isinstance(event, Event) for event in found):
        raise TypeError(f"check_interleavings takes a list of events for each stream, not {shown(events)}; say [event]")
    names = {f"{(spec := type(event).__leftfold__).category}/{getattr(event, spec.key)}" for event in found}
    if len(names) > 1:
        raise TypeError(f"these events are of several streams ({', '.join(sorted(names))}); give a list for each")
    return found


def _input(reactor: Reactor, instance: Instance[Any], what: Any, number: int) -> Input:
    """The input as a processor reads it from the log."""
    headers = f"i{number}", b"2026-01-01T00:00:00Z", b"correlation", b""
    origin = "topic/0", number, 0
    if not isinstance(what, Rejected):
        type_ = reactor.events.types[type(what)]
        return Input(type_, reactor.events.encode(what), "key", *headers, "", origin)
    sent = SentCommand(
        reactor.commands.types[type(what.command)].decode(), reactor.commands.encode(what.command).decode()
    )
    found = [id_ for id_, waiting in instance.waiting.items() if waiting == sent]
    assert found, f"{what.command!r} is rejected but was not sent, or was answered before"
    return Input(NACK, json.dumps(nack(what.error)).encode(), "key", *headers, found[0], origin)
