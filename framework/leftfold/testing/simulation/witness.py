"""Checks a simulated run from its topics alone, with no code of the engine: every guarantee must hold there."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from leftfold.errors import ContractError, DomainError, OutcomeUnknown
from leftfold.model.app import App
from leftfold.model.decider import Decider
from leftfold.model.keys import partition_of
from leftfold.model.position import Receipt
from leftfold.model.process import Process
from leftfold.testing.simulation.kafka.brokers import Cluster
from leftfold.testing.simulation.kafka.partitions import Partition, StoredRecord

__all__ = ["Check", "WitnessedCommand", "dead_letters", "is_undecided", "violations"]

_NEVER = 1 << 62
Check: TypeAlias = Callable[[Mapping[str, Sequence[Any]]], Iterable[str]]
"""A check of the domain: given the events of all deciders by key, yields a sentence per broken guarantee."""


@dataclass
class WitnessedCommand:
    """A command of a client, its content, the ids under which it was sent, and the answer to the last of them.

    None = no answer so far; OutcomeUnknown = the client has given up.
    """

    ids: list[str]
    key: str
    category: str
    content: str = ""
    answer: Receipt | Exception | None = None

    @property
    def id(self) -> str:
        """The id under which it was sent last."""
        return self.ids[-1]


class _Fact(NamedTuple):
    key: str
    version: int
    command: str
    k: int
    n: int
    partition: int
    record: StoredRecord


def violations(
    cluster: Cluster,
    app: App,
    sent: Sequence[WitnessedCommand],
    check: Check | None = None,
    lost: Collection[str] = (),
    due: float = math.inf,
) -> list[str]:
    """All broken guarantees once nothing is in progress; empty when there are none.

    Args:
        lost: ids of commands whose outcome was lost with a topic, which only an operator can resolve.
        due: the time, in seconds since 1970, until which timers must have fired.
    """
    found: list[str] = []
    streams: dict[str, list[Any]] = defaultdict(list)
    asked = [name for process in app.processes for name in _sent_by(cluster, app, process.name)]
    for decider in app.deciders:
        facts = list(_facts(cluster, decider.name))
        mine = [one for one in sent if one.category == decider.name]
        known = {id_ for one in mine for id_ in one.ids} | set(asked)
        found += _sequences(facts)
        found += _decisions(facts)
        found += [f"unasked: {fact.command}" for fact in facts if fact.command not in known]
        found += _outcomes(facts, [one for one in mine if one.answer is None or one.id not in lost])
        found += _misplaced(facts, app.partitions)
        found += _states(cluster, decider, facts)
        found += _undecided(cluster, app.name, decider, facts, lost)
        for key, events in _streams(decider, facts).items():
            streams[key] += events
    if check is not None:
        found += check(streams)
    for process in app.processes:
        found += _inputs(cluster, process)
    found += [f"sent twice: {id_}" for id_, count in Counter(asked).items() if count > 1]
    return [*found, *_unfinished(cluster, app, due), *_open(cluster)]


def dead_letters(cluster: Cluster, app: App) -> Iterator[str]:
    """The dead letters of processes and reactions, each with its reason: code of the App has failed."""
    for name in (*(process.name for process in app.processes), *(reaction.name for reaction in app.reactions)):
        for partition in cluster.topics[f"{name}.dead"].partitions:
            for record in partition.committed():
                if record.key != b"@":
                    reason = dict(record.headers or ()).get("dead_reason") or b""
                    yield f"dead-lettered by {name}: {(record.key or b'').decode()}: {reason.decode(errors='replace')}"


def is_undecided(cluster: Cluster, app: App, lost: Collection[str] = (), due: float = math.inf) -> bool:
    """Whether any command, input or event is not processed, or any timer is set that is due."""
    found = [_unfinished(cluster, app, due)]
    if app.processes:
        # Markers are written one by one: what a transaction sends may be unseen where its offsets are committed.
        found.append(_open(cluster))
    found += (_undecided(cluster, app.name, one, _facts(cluster, one.name), lost) for one in app.deciders)
    return next(chain(*found), None) is not None


def _undecided(
    cluster: Cluster, app: str, decider: Decider[Any, Any, Any], facts: Iterable[_Fact], lost: Collection[str]
) -> Iterator[str]:
    yield from _progress(cluster, app, decider)
    yield from _passed_over(cluster, decider, facts, lost)


def _facts(cluster: Cluster, category: str) -> Iterator[_Fact]:
    for partition in cluster.topics[f"{category}.events"].partitions:
        for record in partition.committed():
            if record.key == b"@":
                continue
            headers = {name: value or b"" for name, value in record.headers or ()}
            k, n = headers["ce_decision"].split(b"/")
            yield _Fact(
                (record.key or b"").decode(),
                int(headers["ce_sequence"]),
                headers["ce_causationid"].decode(),
                int(k),
                int(n),
                partition.number,
                record,
            )


def _sequences(facts: Iterable[_Fact]) -> Iterator[str]:
    """Checks that versions of each stream go from 1 to n without a gap."""
    last: dict[str, int] = {}
    for fact in facts:
        if fact.version != last.get(fact.key, 0) + 1:
            yield f"fork: {fact.key} goes from version {last.get(fact.key, 0)} to {fact.version}"
        last[fact.key] = fact.version


def _decisions(facts: Iterable[_Fact]) -> Iterator[str]:
    """Checks that each decision exists once, whole and in one piece."""
    parts: dict[str, list[_Fact]] = defaultdict(list)
    for fact in facts:
        parts[fact.command].append(fact)
    for command, group in parts.items():
        if [fact.k for fact in group] != list(range(1, group[0].n + 1)):
            kind = "torn" if len(group) < group[0].n else "doubled"
            yield f"{kind}: {command} has parts {[f'{f.k}/{f.n}@{f.version}' for f in group]}"


def _outcomes(facts: Sequence[_Fact], sent: Sequence[WitnessedCommand]) -> Iterator[str]:
    """Checks that the answers of clients match the events."""
    written, last = Counter(f.command for f in facts), {f.command: f.version for f in facts}
    contents, acknowledged = defaultdict[str, set[str]](set), dict[str, str]()
    for one in sent:
        contents[one.id].add(one.content)
    for id_ in {one.id for one in sent if written[one.id]}:
        if all(isinstance(one.answer, ContractError) for one in sent if one.id == id_):
            yield f"confused: every client of {id_} was refused, and it has {written[id_]} events"
    for one in sent:
        answer, events = one.answer, written[one.id]
        if isinstance(answer, Receipt | DomainError) and acknowledged.setdefault(one.id, one.content) != one.content:
            yield f"confused: {one.id} was answered as {acknowledged[one.id]} and as {one.content}"
        if answer is None:
            yield f"unanswered: {one.id}"
        elif isinstance(answer, Receipt):
            if answer.events != events:
                yield f"lost: {one.id} was acknowledged with {answer.events} events and has {events}"
            elif events and answer.version != last[one.id]:
                yield f"misled: {one.id} was acknowledged at {answer.version} and is at {last[one.id]}"
        elif isinstance(answer, DomainError) and events:
            yield f"refused but written: {one.id} {answer!r}"
        elif isinstance(answer, ContractError) and len(contents[one.id]) > 1:
            continue  # its id belongs to another command
        elif not isinstance(answer, DomainError | OutcomeUnknown):
            yield f"failed: {one.id} {answer!r}"


def _misplaced(facts: Iterable[_Fact], count: int) -> Iterator[str]:
    for fact in facts:
        if fact.partition != (home := partition_of(fact.key.encode(), count)):
            yield f"misplaced: {fact.key} is in partition {fact.partition}, not {home}"


def _streams(decider: Decider[Any, Any, Any], facts: Iterable[_Fact]) -> dict[str, list[Any]]:
    """The events of each stream, as the user's classes."""
    types: dict[str, Any] = {cls.__leftfold__.type: cls for cls in decider.events}
    streams: dict[str, list[Any]] = defaultdict(list)
    for fact in facts:
        type_ = (dict(fact.record.headers or ())["ce_type"] or b"").decode()
        streams[fact.key].append(types[type_].model_validate_json(fact.record.value or b""))
    return streams


def _states(cluster: Cluster, decider: Decider[Any, Any, Any], facts: Iterable[_Fact]) -> Iterator[str]:
    """Checks that the state of each stream is the fold of its events."""
    streams = _streams(decider, facts)
    found = _states_of(cluster, decider)
    for key, events in streams.items():
        state, version = found.get(key), len(events)
        if state is None or state["version"] != version:
            yield f"behind: the state of {key} is at {state and state['version']}, its events at {version}"
        elif decider.state.decode(json.dumps(state["state"])) != decider.fold(decider.initial_state, events):
            yield f"unfolded: the state of {key} at {version} is {state['state']}"
    for key, state in found.items():
        if state["version"] and key not in streams:
            yield f"unfounded: a state of {key} without events"


def _progress(cluster: Cluster, app: str, decider: Decider[Any, Any, Any] | Process[Any, Any, Any]) -> Iterator[str]:
    """Checks that all commands are processed, by the group's offsets or the last `@`: workers begin at the later."""
    group = cluster.groups.get(f"leftfold.{app}.{decider.name}")
    for partition in cluster.topics[f"{decider.name}.commands"].partitions:
        last = _last_offset(partition)
        committed = group.committed.get((partition.topic.name, partition.number)) if group else None
        state = cluster.topics[f"{decider.name}.state.v{decider.version}"].partitions[partition.number]
        checkpoint = next((record.value for record in reversed(state.committed()) if record.key == b"@"), None)
        taken = max(committed.offset if committed else 0, _decoded(checkpoint)["commands"] if checkpoint else 0)
        if taken <= last:
            yield f"undecided: {partition} is taken to {taken} of {last + 1}"


def _passed_over(
    cluster: Cluster, decider: Decider[Any, Any, Any], facts: Iterable[_Fact], lost: Collection[str]
) -> Iterator[str]:
    """Checks that every command that came in time has an outcome, with or without a waiting client."""
    decided = {fact.command for fact in facts} | set(lost)
    for partition in cluster.topics[f"{decider.name}.state.v{decider.version}"].partitions:
        for record in partition.committed():
            if record.key != b"@" and record.value is not None:
                decided |= _answered(record.value)
    for partition in cluster.topics[f"{decider.name}.commands"].partitions:
        for record in partition.committed():
            headers = dict(record.headers or ())
            id_, deadline = (headers.get("ce_id") or b"").decode(), int(headers.get("deadline") or _NEVER)
            if record.key != b"@" and record.timestamp <= deadline and id_ not in decided:
                yield f"passed over: {id_} at {record.offset} of {partition}"


@lru_cache(4096)
def _answered(state: bytes) -> frozenset[str]:
    """The ids of the commands whose answers a state record holds."""
    return frozenset(answer[0] for answer in json.loads(state)["answered"])


@lru_cache(4096)
def _decoded(record: bytes) -> Mapping[str, Any]:
    """A record of states, which a run looks at many times."""
    found: Mapping[str, Any] = json.loads(record)
    return found


def _unfinished(cluster: Cluster, app: App, due: float) -> Iterator[str]:
    """Checks that process managers and reactions have processed everything, and that no timer waits that is due."""
    for process in app.processes:
        yield from _behind(cluster, f"leftfold.{app.name}.{process.name}.router", process.categories)
        yield from _progress(cluster, app.name, process)
        for key, state in _states_of(cluster, process).items():
            for name, timer in state["timers"].items():
                if datetime.fromisoformat(timer["at"]).timestamp() <= due:
                    yield f"waiting: timer {name} of {process.name} {key}"
    for reaction in app.reactions:
        yield from _behind(cluster, f"leftfold.{app.name}.{reaction.name}.reaction", reaction.categories)


def _last_offset(partition: Partition) -> int:
    committed = partition.committed()
    return committed[-1].offset if committed else -1


def _behind(cluster: Cluster, group: str, categories: Iterable[str]) -> Iterator[str]:
    """Event partitions that a consumer group has not read to the end."""
    known = cluster.groups.get(group)
    for category in categories:
        for partition in cluster.topics[f"{category}.events"].partitions:
            last = _last_offset(partition)
            committed = known.committed.get((partition.topic.name, partition.number)) if known else None
            if (committed.offset if committed else 0) <= last:
                yield f"behind: {group} has read {partition} to {committed and committed.offset} of {last + 1}"


def _states_of(
    cluster: Cluster, owner: Decider[Any, Any, Any] | Process[Any, Any, Any]
) -> dict[str, Mapping[str, Any]]:
    """The last state record of each stream or instance, by key."""
    found: dict[bytes, bytes] = {}
    for partition in cluster.topics[f"{owner.name}.state.v{owner.version}"].partitions:
        for record in partition.committed():
            if record.key not in (b"@", None) and record.value is not None:
                found[record.key or b""] = record.value
    return {key.decode(): _decoded(value) for key, value in found.items()}


def _sent_by(cluster: Cluster, app: App, process: str) -> Iterator[str]:
    """The ids of the committed commands that a process manager has sent, and of the timers that it has fired."""
    source = f"/{app.name}/{process}".encode()
    topics = [*(f"{decider.name}.commands" for decider in app.deciders), f"{process}.commands"]
    for topic in topics:
        for partition in cluster.topics[topic].partitions:
            for record in partition.committed():
                headers = dict(record.headers or ()) if record.key != b"@" else {}
                is_sent = "origin" not in headers or headers.get("reply_key")
                if headers.get("ce_source") == source and is_sent:
                    yield (headers["ce_id"] or b"").decode()


def _inputs(cluster: Cluster, process: Process[Any, Any, Any]) -> Iterator[str]:
    """Checks that each event has reached its instance, behind the earlier ones of its partition."""
    types: dict[bytes, Any] = {cls.__leftfold__.type.encode(): cls for cls in process.events}
    seen: dict[tuple[str, str, str], int] = {}
    routed: set[tuple[str, str, int]] = set()
    for partition in cluster.topics[f"{process.name}.commands"].partitions:
        for record in partition.committed():
            headers = dict(record.headers or ())
            if record.key == b"@" or "origin" not in headers:
                continue
            topic, number, offset, _ = (headers["origin"] or b"").decode().split("/")
            source = ((record.key or b"").decode(), topic, number)
            if (topic, number, int(offset)) not in routed and int(offset) < seen.get(source, -1):
                yield f"out of order: {source} gets {offset} behind {seen[source]}"
            seen[source] = max(int(offset), seen.get(source, -1))
            routed.add((topic, number, int(offset)))
    for category in process.categories:
        for partition in cluster.topics[f"{category}.events"].partitions:
            for record in partition.committed():
                cls = types.get(dict(record.headers or ()).get("ce_type") or b"")
                if record.key == b"@" or cls is None:
                    continue
                is_routed = (partition.topic.name, str(partition.number), record.offset) in routed
                if process.correlate(cls.model_validate_json(record.value or b"")) is not None and not is_routed:
                    yield f"not routed: {partition}@{record.offset} to {process.name}"


def _open(cluster: Cluster) -> Iterator[str]:
    """Checks that no transaction stays open."""
    yield from (f"open: {one.id} in {one.state.name}" for one in cluster.coordinator.open())
    for partition in (one for topic in cluster.topics.values() for one in topic.partitions):
        if partition.stable_end < partition.end:
            yield f"open: {partition} is stable to {partition.stable_end} of {partition.end}"
