"""Scripts about members of groups: who owns what, generations, what is lost, and commits meanwhile."""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from tests.simulation.conformance.bench import SECONDS, Bench, generation_of, said

__all__ = ["SCRIPTS"]


class _Member:
    """A member that notes what happens to it."""

    def __init__(self, bench: Bench, topic: str, group: str, **config: Any) -> None:
        self.consumer = bench.consumer(group_id=group, **config)
        self.events: list[tuple[str, list[int]]] = []
        self.consumer.subscribe(
            [topic], on_assign=self._note("assign"), on_revoke=self._note("revoke"), on_lost=self._note("lost")
        )

    def _note(self, what: str) -> Any:
        return lambda _, places: self.events.append((what, sorted(place.partition for place in places)))

    @property
    def owned(self) -> list[int]:
        return sorted(place.partition for place in self.consumer.assignment())


def the_first_member_owns_everything(bench: Bench) -> None:
    topic, group = bench.topic(3), bench.unique("group")
    member = _Member(bench, topic, group)
    bench.saw("generation before", generation_of(member.consumer), -1)
    bench.saw("name before", member.consumer.memberid(), None)
    bench.wait_owned([member.consumer], 3)
    bench.saw("events", member.events, [("assign", [0, 1, 2])])
    bench.saw("generation", generation_of(member.consumer), 1)
    bench.saw("has a name", bool(member.consumer.memberid()), True)


def a_second_member_takes_over_in_two_steps(bench: Bench) -> None:
    topic, group = bench.topic(4), bench.unique("group")
    first = _Member(bench, topic, group)
    bench.wait_owned([first.consumer], 4)
    before = generation_of(first.consumer)
    second = _Member(bench, topic, group)
    bench.wait_owned([first.consumer, second.consumer], 4)
    moved = second.owned
    bench.saw("owned", (len(first.owned), len(moved)), (2, 2))
    bench.saw("events of the first", [what for what, _ in first.events][:2], ["assign", "revoke"])
    bench.saw("what is revoked is what moves", first.events[1][1] == moved, True)
    bench.saw("given to the first again", [p for _, given in first.events[2:] for p in given], [])
    given = [given for what, given in second.events if what == "assign"]
    bench.saw("events of the second", given in ([[], moved], [moved]), True)
    bench.saw("generations", generation_of(first.consumer) - before, 2)


def members_that_are_eager_give_everything_up_first(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    eager = {"partition_assignment_strategy": "roundrobin"}
    first = _Member(bench, topic, group, **eager)
    bench.wait_owned([first.consumer], 2)
    second = _Member(bench, topic, group, **eager)
    bench.wait_owned([first.consumer, second.consumer], 2)
    bench.saw("events", first.events[:2], [("assign", [0, 1]), ("revoke", [0, 1])])
    bench.saw("given then", [len(places) for what, places in first.events[2:] if what == "assign"], [1])
    bench.saw("generation", generation_of(first.consumer), 2)


def what_a_member_leaves_is_taken_over(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    first, second = _Member(bench, topic, group), _Member(bench, topic, group)
    bench.wait_owned([first.consumer, second.consumer], 2)
    left = second.owned
    second.consumer.close()
    bench.saw("its last event", second.events[-1] == ("revoke", left), True)
    bench.wait_owned([first.consumer], 2)
    bench.saw("nothing is revoked", [what for what, _ in first.events].count("lost"), 0)
    bench.saw("the last assignment", first.events[-1] == ("assign", left), True)


def leaving_without_closing_gives_up_everything(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    member = _Member(bench, topic, group)
    bench.wait_owned([member.consumer], 2)
    before = member.consumer.memberid()
    member.consumer.unsubscribe()
    bench.poll_all(member.consumer)
    bench.saw("owned", member.owned, [])
    bench.saw("events", member.events, [("assign", [0, 1]), ("revoke", [0, 1])])
    bench.saw("named", before != "", True)
    other = _Member(bench, topic, group)
    bench.wait_owned([other.consumer], 2)
    bench.saw("the other", other.events, [("assign", [0, 1])])


def a_commit_within_a_revocation_is_taken(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    first = bench.consumer(group_id=group)
    said_: list[str] = []

    def revoke(consumer: Any, places: list[TopicPartition]) -> None:
        offsets = [TopicPartition(place.topic, place.partition, 7) for place in places]
        said_.append(said(consumer.commit, offsets=offsets, asynchronous=False))

    first.subscribe([topic], on_revoke=revoke)
    bench.wait_owned([first], 2)
    second = bench.consumer(group_id=group)
    second.subscribe([topic])
    bench.wait_owned([first, second], 2)
    bench.saw("commits", said_, ["ok"])
    moved = [place.partition for place in second.assignment()]
    bench.saw("committed", bench.committed(group, topic, moved), [(7, None)])


def a_commit_of_what_another_owns_is_taken(bench: Bench) -> None:
    """A fence is per member and generation, not per partition."""
    topic, group = bench.topic(2), bench.unique("group")
    first, second = bench.members(topic, group, 2)
    others = [TopicPartition(place.topic, place.partition, 9) for place in second.assignment()]
    bench.saw("commit", said(first.commit, offsets=others, asynchronous=False), "ok")
    bench.saw("committed", bench.committed(group, topic, [others[0].partition]), [(9, None)])


def a_commit_between_join_and_assignment_is_refused(bench: Bench) -> None:
    """The group waits for the first to join again, while the second has joined."""
    topic, group = bench.topic(2), bench.unique("group")
    first = bench.consumer(group_id=group, far=True)
    first.subscribe([topic])
    bench.wait_owned([first], 2)
    held = bench.strike("sync", "hold")
    second = bench.consumer(group_id=group)
    second.subscribe([topic])
    bench.wait(lambda: bench.poll_all(first, second) is None or held.count, "the leader's sync")
    place = [TopicPartition(topic, 0, 5)]
    bench.saw("commit", said(first.commit, offsets=place, asynchronous=False), "REBALANCE_IN_PROGRESS")
    held.release()
    bench.wait_owned([first, second], 2)
    bench.saw("commit then", said(first.commit, offsets=place, asynchronous=False), "ok")


def a_member_that_is_not_heard_of_loses_everything(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    short = {"session_timeout_ms": 2000, "socket_timeout_ms": 1000}
    first = _Member(bench, topic, group, far=True, **short)
    bench.wait_owned([first.consumer], 2)
    old, writer = first.consumer.consumer_group_metadata(), bench.writer()
    silent = bench.strike("heartbeat", "lose", times=100_000)
    second = _Member(bench, topic, group)
    bench.wait_owned([second.consumer], 2)
    bench.saw("the second owns", second.owned, [0, 1])
    writer.begin_transaction()
    place = [TopicPartition(topic, 0, 5)]
    refused = said(writer.send_offsets_to_transaction, place, old, SECONDS)
    bench.saw("offsets of the first", refused, "UNKNOWN_MEMBER_ID abortable")
    silent.release()
    bench.wait_owned([first.consumer, second.consumer], 2)
    bench.saw("the first's", [what for what, _ in first.events][:2], ["assign", "lost"])
    bench.saw("lost", first.events[1][1], [0, 1])


def a_member_that_does_not_poll_loses_everything(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    slow = _Member(bench, topic, group, max_poll_interval_ms=2500, session_timeout_ms=2500)
    bench.wait_owned([slow.consumer], 2)
    bench.wait(lambda: bench.count_members(group) == 0, "the slow one to leave")
    bench.saw("still its own, for all it knows", slow.owned, [0, 1])
    other = _Member(bench, topic, group)
    bench.wait_owned([other.consumer], 2)
    place = [TopicPartition(topic, 0, 5)]
    bench.saw("commit", said(slow.consumer.commit, offsets=place, asynchronous=False), "UNKNOWN_MEMBER_ID")
    errors: list[Any] = []

    def back() -> bool:
        errors.extend(bench.poll_all(slow.consumer, other.consumer))
        return len(slow.owned) == len(other.owned) == 1

    bench.wait(back, "the slow one to be back")
    bench.saw("errors", {one for one in errors if isinstance(one, str)}, {"_MAX_POLL_EXCEEDED"})
    bench.saw("events", slow.events[:2], [("assign", [0, 1]), ("lost", [0, 1])])


def messages_of_what_was_revoked_do_not_come(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.unique("group")
    for partition in range(2):
        bench.fill(topic, *(f"{partition}.{n}" for n in range(200)), partition=partition)
    first = bench.consumer(group_id=group)
    before: list[Any] = []
    revoked: list[int] = []
    first.subscribe([topic], on_revoke=lambda _, places: revoked.extend(place.partition for place in places))
    bench.wait(lambda: bench.collect(before, first), "a message")
    second = bench.consumer(group_id=group)
    second.subscribe([topic])
    while not revoked:
        before.extend(bench.poll_all(first))
        bench.poll_all(second)
    after: list[Any] = []
    kept = 1 - revoked[0]
    last = f"{kept}.199"
    bench.wait(lambda: last in [*before, *bench.collect(after, first)], "the end of what is kept")
    bench.saw("of what was revoked", [v for v in after if str(v).startswith(f"{revoked[0]}.")], [])
    values = [v for v in [*before, *after] if str(v).startswith(f"{kept}.")]
    bench.saw("what is kept is read on without a break", values == [f"{kept}.{n}" for n in range(200)], True)


def an_assignment_begins_where_the_group_is(bench: Bench) -> None:
    topic, group = bench.topic(), bench.unique("group")
    bench.fill(topic, "a", "b", "c")
    outside = bench.consumer(group_id=group)
    outside.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    member = bench.consumer(group_id=group)
    member.subscribe([topic])
    bench.saw("read", bench.until_end(member), ["c", 3])
    elsewhere = bench.consumer(group_id=bench.unique("group"))
    elsewhere.subscribe([topic], on_assign=lambda c, places: c.incremental_assign([TopicPartition(topic, 0, 1)]))
    bench.saw("where it was assigned", bench.until_end(elsewhere), ["b", "c", 3])


def a_topic_that_is_not_there_is_said_and_waited_for(bench: Bench) -> None:
    name = bench.unique("topic")
    member = bench.consumer(topic_metadata_refresh_interval_ms=500)
    member.subscribe([name])
    bench.saw("said", bench.taken(member, 1), ["UNKNOWN_TOPIC_OR_PART"])
    bench.topic(2, name)
    bench.wait_owned([member], 2)


def a_member_hears_that_its_topic_was_deleted(bench: Bench) -> None:
    topic, group, admin = bench.topic(2), bench.unique("group"), bench.admin()
    bench.fill(topic, "a")
    member = _Member(bench, topic, group, topic_metadata_refresh_interval_ms=300)
    seen: list[Any] = []
    bench.wait(lambda: bench.collect(seen, member.consumer) and {"a", 0, 1} <= set(seen), "both ends")
    admin.delete_topics([topic])[topic].result(SECONDS)
    bench.saw("said", bench.taken(member.consumer, 1), ["UNKNOWN_TOPIC_OR_PART"])
    bench.wait(lambda: bench.poll_all(member.consumer) or len(member.events) > 1, "what it owned to be lost")
    bench.saw("generation, as of one who is still a member", generation_of(member.consumer), 1)
    bench.topic(2, topic)
    bench.fill(topic, "new")
    bench.wait(lambda: bench.collect(seen, member.consumer) and "new" in seen, "the new record")
    bench.saw("events", member.events, [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])])


SCRIPTS = (
    the_first_member_owns_everything,
    a_second_member_takes_over_in_two_steps,
    members_that_are_eager_give_everything_up_first,
    what_a_member_leaves_is_taken_over,
    leaving_without_closing_gives_up_everything,
    a_commit_within_a_revocation_is_taken,
    a_commit_of_what_another_owns_is_taken,
    a_commit_between_join_and_assignment_is_refused,
    a_member_that_is_not_heard_of_loses_everything,
    a_member_that_does_not_poll_loses_everything,
    messages_of_what_was_revoked_do_not_come,
    an_assignment_begins_where_the_group_is,
    a_topic_that_is_not_there_is_said_and_waited_for,
    a_member_hears_that_its_topic_was_deleted,
)
