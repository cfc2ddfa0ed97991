"""The coordinator of consumer groups: members, generations and committed offsets (the classic protocol)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from leftfold.testing.simulation.kafka.partitions import BrokerError
from leftfold.testing.simulation.scheduler import ScheduledCall

__all__ = ["Assignment", "CommittedOffset", "Group", "Joined", "PartitionId", "Reply", "balanced"]

PartitionId = tuple[str, int]
Assignment = frozenset[PartitionId]
Reply = Callable[[object], None]
NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, ID_REQUIRED, UNSTABLE = 16, 22, 25, 27, 79, 88


@dataclass(frozen=True)
class CommittedOffset:
    """A committed offset of a group; offset -1001 = none."""

    offset: int = -1001
    metadata: str | None = None


@dataclass(frozen=True)
class Joined:
    """The answer to a join: `members` and their assignments are for the leader alone."""

    generation: int
    member: str
    leader: str
    members: Mapping[str, tuple[tuple[str, ...], Assignment]] = field(default_factory=dict)


class _Phase(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class _Member:
    def __init__(self, id_: str, session: float, rebalance: float) -> None:
        self.id, self.session, self.rebalance = id_, session, rebalance
        self.topics: tuple[str, ...] = ()
        self.owned: Assignment = frozenset()
        self.joining: Reply | None = None
        self.syncing: Reply | None = None
        self.timer: ScheduledCall | None = None
        self.assignment: Assignment = frozenset()


class Group:
    """One consumer group. Answers that wait for other members call `reply` with a value or a `BrokerError`.

    Args:
        call_later: schedules an action in so many seconds. delay: seconds that an empty group waits for more members.
    """

    def __init__(
        self, name: str, call_later: Callable[[float, Callable[[], None]], ScheduledCall], delay: float = 0.0
    ) -> None:
        self.name, self._call_later, self._delay = name, call_later, delay
        self.generation = 0
        self.members: dict[str, _Member] = {}
        self.committed: dict[PartitionId, CommittedOffset] = {}
        self.pending: dict[int, dict[PartitionId, tuple[int, CommittedOffset]]] = {}
        self._phase, self._leader, self._count = _Phase.EMPTY, "", 0
        self._named: set[str] = set()
        self._order = 0
        self._since: dict[PartitionId, int] = {}
        self._due: ScheduledCall | None = None

    def join(
        self,
        member: str,
        client: str,
        topics: tuple[str, ...],
        owned: Assignment,
        session: float,
        rebalance: float,
        reply: Reply,
    ) -> None:
        """Handles a join request; the answer comes once all members have joined."""
        if not member:
            self._count += 1
            name = f"{client}-{self._count:08d}"
            self._named.add(name)
            reply((ID_REQUIRED, name))
            return
        found = self.members.get(member)
        if found is None:
            if member not in self._named:
                reply(BrokerError(UNKNOWN_MEMBER))
                return
            self._named.discard(member)
            found = self.members[member] = _Member(member, session, rebalance)
            self._leader = self._leader if self._leader in self.members else member
            is_news = True
        else:
            is_news = found.topics != topics or found.owned != owned or member == self._leader
        found.topics, found.owned, found.session = topics, owned, session
        if self._phase is _Phase.STABLE and not is_news:
            # A member that missed its last answer: nothing has changed for it.
            reply(self._answer(found))
            return
        if found.joining is not None:
            found.joining(BrokerError(REBALANCING))
        found.joining = reply
        self._heard(found)
        if self._phase is not _Phase.PREPARING:
            self._prepare()
        self._complete_if_all()

    def sync(self, member: str, generation: int, assignments: Mapping[str, Assignment], reply: Reply) -> None:
        """Handles a sync request: the leader sends all assignments, each member gets its own."""
        found = self.members.get(member)
        if found is None:
            reply(BrokerError(UNKNOWN_MEMBER))
        elif generation != self.generation:
            reply(BrokerError(ILLEGAL_GENERATION))
        elif self._phase is _Phase.PREPARING:
            reply(BrokerError(REBALANCING))
        elif self._phase is _Phase.STABLE:
            self._heard(found)
            reply(found.assignment)
        else:
            found.syncing = reply
            self._heard(found)
            if member == self._leader:
                self._phase = _Phase.STABLE
                for other in self.members.values():
                    other.assignment = assignments.get(other.id, frozenset())
                for other in self.members.values():
                    waiting, other.syncing = other.syncing, None
                    if waiting is not None:
                        self._heard(other)
                        waiting(other.assignment)

    def heartbeat(self, member: str, generation: int) -> None:
        """Handles a heartbeat of a member.

        Raises:
            BrokerError: it must join again, or is not a member any more.
        """
        found = self._checked(member, generation)
        self._heard(found)
        if self._phase is _Phase.PREPARING:
            raise BrokerError(REBALANCING)

    def leave(self, member: str) -> None:
        """Removes a member that leaves.

        Raises:
            BrokerError: UNKNOWN_MEMBER_ID.
        """
        if member not in self.members:
            raise BrokerError(UNKNOWN_MEMBER)
        self._remove(member)

    def commit(self, member: str, generation: int, offsets: Mapping[PartitionId, CommittedOffset]) -> None:
        """Commits offsets at once.

        Raises:
            BrokerError: the member or its generation is not the group's.
        """
        if generation >= 0 or self.members:
            found = self._checked(member, generation)
            if self._phase is _Phase.COMPLETING:
                raise BrokerError(REBALANCING)
            self._heard(found)
        for place, written in self._numbered(offsets).items():
            self._keep(place, *written)

    def commit_within(
        self, producer: int, member: str, generation: int, offsets: Mapping[PartitionId, CommittedOffset]
    ) -> None:
        """Commits offsets with the transaction of a producer, once that is committed.

        Raises:
            BrokerError: as `commit`; but offsets without a member are accepted, whatever members there are.
        """
        if generation >= 0 or (member and self.members):
            self._checked(member, generation)
        self.pending.setdefault(producer, {}).update(self._numbered(offsets))

    def settle(self, producer: int, *, commit: bool) -> None:
        """Applies or drops the pending offsets of a producer whose transaction has ended."""
        for place, written in self.pending.pop(producer, {}).items():
            if commit:
                self._keep(place, *written)

    def _numbered(
        self, offsets: Mapping[PartitionId, CommittedOffset]
    ) -> dict[PartitionId, tuple[int, CommittedOffset]]:
        self._order += 1
        return {place: (self._order, one) for place, one in offsets.items()}

    def _keep(self, place: PartitionId, order: int, one: CommittedOffset) -> None:
        """Commits an offset, unless the committed one was sent later."""
        if order >= self._since.get(place, 0):
            self._since[place], self.committed[place] = order, one

    def found(self, place: PartitionId, *, stable: bool) -> CommittedOffset:
        """The committed offset of a partition.

        Raises:
            BrokerError: UNSTABLE_OFFSET_COMMIT: an undecided transaction has another one.
        """
        if stable and any(place in offsets for offsets in self.pending.values()):
            raise BrokerError(UNSTABLE)
        return self.committed.get(place, CommittedOffset())

    def reload(self) -> None:
        """Loads a new coordinator: rebalances in progress begin again, and every member's session timeout restarts."""
        for member in self.members.values():
            waiting = [reply for reply in (member.joining, member.syncing) if reply is not None]
            member.joining = member.syncing = None
            for reply in waiting:
                reply(BrokerError(NOT_COORDINATOR))
            self._heard(member)
        if self._phase in (_Phase.PREPARING, _Phase.COMPLETING):
            self._prepare()

    def _checked(self, member: str, generation: int) -> _Member:
        found = self.members.get(member)
        if found is None:
            raise BrokerError(UNKNOWN_MEMBER)
        if generation != self.generation:
            raise BrokerError(ILLEGAL_GENERATION)
        return found

    def _prepare(self) -> None:
        was_empty = self._phase is _Phase.EMPTY
        for member in self.members.values():
            waiting, member.syncing = member.syncing, None
            if waiting is not None:
                waiting(BrokerError(REBALANCING))
        self._phase = _Phase.PREPARING
        if self._due is not None:
            self._due.cancel()
        longest = max((member.rebalance for member in self.members.values()), default=0.0)
        self._due = self._call_later(self._delay if was_empty else longest, self._complete)
        self._is_delayed = was_empty and self._delay > 0

    def _complete_if_all(self) -> None:
        if not self._is_delayed and all(member.joining is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Completes the join: the members that have joined by now are the group."""
        if self._phase is not _Phase.PREPARING:
            return
        if self._due is not None:
            self._due.cancel()
        self._is_delayed = False
        for member in [m for m in self.members.values() if m.joining is None]:
            self._forget(member)
        self.generation += 1
        if not self.members:
            self._phase = _Phase.EMPTY
            return
        if self._leader not in self.members:
            self._leader = next(iter(self.members))
        self._phase = _Phase.COMPLETING
        for member in list(self.members.values()):
            waiting, member.joining = member.joining, None
            self._heard(member)
            if waiting is not None:
                waiting(self._answer(member))

    def _answer(self, member: _Member) -> Joined:
        is_leader = member.id == self._leader
        members = {m.id: (m.topics, m.owned) for m in self.members.values()} if is_leader else {}
        return Joined(self.generation, member.id, self._leader, members)

    def _heard(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        member.timer = self._call_later(member.session, lambda: self._expired(member))

    def _expired(self, member: _Member) -> None:
        if member.joining is not None:
            # A member that waits for the others sends no heartbeats.
            self._heard(member)
        elif self.members.get(member.id) is member:
            self._remove(member.id)

    def _forget(self, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        del self.members[member.id]

    def _remove(self, name: str) -> None:
        member = self.members[name]
        self._forget(member)
        for waiting in (member.joining, member.syncing):
            if waiting is not None:
                waiting(BrokerError(UNKNOWN_MEMBER))
        if self._phase in (_Phase.STABLE, _Phase.COMPLETING):
            self._prepare()
        if self._phase is _Phase.PREPARING:
            self._complete_if_all()

    _is_delayed = False


def balanced(
    members: Mapping[str, tuple[tuple[str, ...], Assignment]], counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """An even, sticky assignment; a partition that moves first has no owner for a round (cooperative-sticky)."""
    names = sorted(members)
    places = [(t, p) for t, count in sorted(counts.items()) for p in range(count)]
    owners: dict[PartitionId, str] = {}
    for name in names:
        for place in sorted(members[name][1]):
            if place in owners:
                # Two members claim it: neither keeps it, and the next round assigns it to one.
                owners[place] = ""
            elif place[0] in members[name][0]:
                owners[place] = name
    share, more = divmod(len(places), len(names))
    given: dict[str, list[PartitionId]] = {name: [p for p in places if owners.get(p) == name] for name in names}
    by_weight = sorted(names, key=lambda name: (-len(given[name]), name))
    quota = {name: share + (index < more) for index, name in enumerate(by_weight)}
    free = [p for p in places if not owners.get(p)]
    for name in names:
        free += given[name][quota[name] :]
        del given[name][quota[name] :]
    for place in sorted(free):
        taker = next((n for n in by_weight if len(given[n]) < quota[n] and place[0] in members[n][0]), None)
        if taker is not None:
            given[taker].append(place)
    # A partition taken from a member is assigned in the next round, once it is revoked.
    return {n: frozenset(p for p in given[n] if owners.get(p, n) in ("", n)) for n in names}
