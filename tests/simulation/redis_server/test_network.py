"""What the simulated network does to flushes: loses them, or their answers, holds them up, and delivers them late."""

from __future__ import annotations

import select as real_select
import socket as real_socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from leftfold.engine.views.generations import empty_marks
from leftfold.errors import Fenced, InfrastructureError
from leftfold.ports.flush import Generation, Phase
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from leftfold.testing.simulation.kafka.brokers import Fate
from leftfold.testing.simulation.scheduler import SimulatedProcess
from leftfold.testing.simulation.stand_ins import sockets
from tests.simulation.redis_server.redis_world import RedisWorld, redis_world


class _Writer:
    """A process whose store has flushed a bucket once, so that it holds a WATCH; its calls are made in the process."""

    def __init__(self, world: RedisWorld) -> None:
        self.world = world
        self.generation = new_generation(buckets=1)
        self.store = world.do(world.store, "writer")
        assert self.do(lambda: self.store.create_marks(self.generation, {0: checkpoint("", 0)}))
        assert self.flush("", "t1")

    def do(self, work: Callable[[], bool]) -> bool:
        """Does something in the process."""
        return self.world.do(work, "writer")

    def flush(self, expected: str, token: str) -> bool:
        """Flushes one row; whether it is known to have landed."""
        return self.do(lambda: self.store.flush([flush_of(self.generation, 0, expected, token, row(token))]))

    def meet(self, fate: Fate, at: str) -> None:
        """The next piece of data that is called so meets a fate."""

        def chosen(what: str, process: SimulatedProcess) -> Fate | None:
            if what != at or process.name != "writer":
                return None
            self.world.network.fate = lambda what, process: None
            return fate

        self.world.network.fate = chosen

    @property
    def state(self) -> tuple[str, list[str]]:
        """The token in the checkpoint, and the rows, as another process reads them."""
        return _state(self.world, self.generation)


def _state(world: RedisWorld, generation: Generation) -> tuple[str, list[str]]:
    def read() -> tuple[str, list[str]]:
        store = world.store()
        return store.checkpoints(generation)[0].token, store.keys(generation, 0, "", 99)

    return world.do(read, "reader")


@pytest.fixture
def writer() -> Iterator[_Writer]:
    """A writer in a world of its own."""
    with redis_world(seed=7) as world:
        yield _Writer(world)


def test_a_lost_flush_writes_nothing(writer: _Writer) -> None:
    writer.meet(Fate("lost"), "redis MULTI")
    assert not writer.flush("t1", "t2")
    assert writer.state == ("t1", ["t1"])
    assert writer.flush("t1", "t2")


def test_a_flush_whose_answer_is_lost_may_have_written(writer: _Writer) -> None:
    writer.meet(Fate("unanswered"), "redis MULTI")
    assert not writer.flush("t1", "t2")
    assert writer.state == ("t2", ["t1", "t2"])
    assert not writer.flush("t1", "t2")
    assert writer.flush("t2", "t3")


@pytest.mark.parametrize("fate", [Fate("unanswered"), Fate("lost")], ids=str)
def test_a_seal_whose_answer_is_lost_is_no_seal_of_another_process(writer: _Writer, fate: Fate) -> None:
    bulk = new_generation(buckets=2).in_phase(Phase.BULK)
    assert writer.do(lambda: writer.store.create_marks(bulk, empty_marks(bulk)))
    sealed = {bucket: replace(checkpoint(f"s{bucket}", 3), phase=Phase.SEALED) for bucket in range(2)}
    writer.meet(fate, "redis MULTI")
    writer.world.do(partial(writer.store.seal, bulk, sealed), "writer")
    assert writer.do(lambda: writer.store.checkpoints(bulk) == sealed)
    rival = {bucket: replace(mark, token="r") for bucket, mark in sealed.items()}
    with pytest.raises(Fenced, match="another process sealed"):
        writer.world.do(partial(writer.store.seal, bulk, rival), "writer")


def test_wherever_a_flush_is_torn_it_is_written_whole_or_not_at_all() -> None:
    outcomes = set[tuple[str, ...]]()
    for size in range(0, 900, 61):
        with redis_world(seed=size) as world:
            writer = _Writer(world)
            world.network.torn = lambda most, size=size: min(size, most)  # type: ignore[misc]
            writer.meet(Fate("lost"), "redis MULTI")
            assert not writer.flush("t1", "t2")
            token, rows = writer.state
            assert (token, rows) in [("t1", ["t1"]), ("t2", ["t1", "t2"])]
            outcomes.add(tuple(rows))
    assert len(outcomes) == 2


def test_a_late_flush_takes_its_time_and_no_other_waits(writer: _Writer) -> None:
    began = writer.world.world.scheduler.now
    writer.meet(Fate("late", 1.5), "redis MULTI")
    assert writer.flush("t1", "t2")
    assert 1.5 < writer.world.world.scheduler.now - began < 1.6


def test_a_flush_that_was_held_up_arrives_when_its_sender_has_given_up_and_is_fenced(writer: _Writer) -> None:
    world = writer.world
    world.network.cut.add(("writer", "redis:6379", "to"))
    began = world.world.scheduler.now
    assert not writer.flush("t1", "late")
    assert 2.0 <= world.world.scheduler.now - began < 2.1
    assert world.do(lambda: world.store().flush([flush_of(writer.generation, 0, "t1", "t2", row("t2"))]), "rival"), (
        "a rival takes over meanwhile"
    )
    world.network.cut.clear()
    world.pass_time(1.0)
    assert writer.state == ("t2", ["t1", "t2"])


def test_a_flush_that_was_held_up_arrives_late_where_nothing_has_changed(writer: _Writer) -> None:
    writer.world.network.cut.add(("writer", "redis:6379", "to"))
    assert not writer.flush("t1", "t2")
    assert writer.state == ("t1", ["t1"])
    writer.world.network.cut.clear()
    writer.world.pass_time(1.0)
    assert writer.state == ("t2", ["t1", "t2"])


def test_answers_that_do_not_get_through_are_waited_for_in_virtual_time(writer: _Writer) -> None:
    writer.world.network.cut.add(("writer", "redis:6379", "from"))
    assert not writer.flush("t1", "t2")
    assert writer.state == ("t2", ["t1", "t2"])


def test_a_server_that_is_down_refuses_and_one_that_was_killed_has_closed_its_connections(writer: _Writer) -> None:
    world = writer.world
    world.host.kill()
    assert not world.redis.sessions
    assert not writer.flush("t1", "t2"), "the connection is lost, and nothing else is known"
    with pytest.raises(InfrastructureError, match="refused"):
        writer.flush("t1", "t2")
    world.host.start()
    assert writer.flush("t1", "t2")


def test_a_server_that_stands_still_answers_when_it_continues(writer: _Writer) -> None:
    world = writer.world
    world.host.is_stopped = True
    began = world.world.scheduler.now
    assert not writer.flush("t1", "t2")
    assert world.world.scheduler.now - began >= 2.0
    with pytest.raises(InfrastructureError, match="timed out"):
        writer.flush("t1", "t2")
    world.host.is_stopped = False
    world.pass_time(1.0)
    assert writer.state == ("t2", ["t1", "t2"])


def test_what_a_killed_process_has_sent_arrives_and_its_connections_end(writer: _Writer) -> None:
    world, generation = writer.world, writer.generation

    def flush() -> None:
        world.store().flush([flush_of(generation, 0, "t1", "t2", row("t2"))])

    def strike(process: SimulatedProcess, what: str) -> None:
        sent.append(what)
        if what == "redis recv" and "redis MULTI" in sent:
            process.end(-9)

    sent: list[str] = []
    before = len(world.redis.sessions)
    task = world.world.start("victim", flush)
    task.process.strike = strike
    world.pass_time(1.0)
    assert task.process.code == -9
    assert task.is_done
    assert len(world.redis.sessions) == before
    assert writer.state == ("t2", ["t1", "t2"])


def test_whichever_call_a_process_is_killed_at_its_flushes_are_whole() -> None:
    ends = set[str]()
    for number in range(1, 99):
        with redis_world(seed=number) as world:
            writer = _Writer(world)

            def flush(world: RedisWorld = world, generation: Generation = writer.generation) -> None:
                store = world.store()
                assert store.flush([flush_of(generation, 0, "t1", "t2", row("t2"))])
                assert store.flush([flush_of(generation, 0, "t2", "t3", row("t3"))])

            def strike(process: SimulatedProcess, what: str, number: int = number) -> None:
                if process.calls == number:
                    process.end(-9)

            task = world.world.start("victim", flush)
            task.process.strike = strike
            world.pass_time(1.0)
            assert task.is_done
            token, rows = writer.state
            assert rows == [f"t{n}" for n in range(1, int(token[1:]) + 1)]
            ends.add(token)
            if task.process.code is None:
                assert task.error is None
                break
            assert all(link.process is not task.process for link in world.host.links)
    assert ends == {"t1", "t2", "t3"}


def test_a_stopped_process_finds_its_answer_when_it_continues(writer: _Writer) -> None:
    world, generation = writer.world, writer.generation
    landed: list[bool] = []
    task = world.world.start(
        "sleeper", lambda: landed.append(world.store().flush([flush_of(generation, 0, "t1", "t2", row("t2"))]))
    )
    world.world.run(lambda: any(link.process is task.process for link in world.host.links), 1.0)
    task.process.stop()
    world.pass_time(30.0)
    assert landed == []
    task.process.go_on()
    world.pass_time(30.0)
    assert landed == [True]


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for seed in (1, 1, 2):
        with redis_world(seed) as world:
            writer = _Writer(world)
            trace: list[tuple[float, str]] = []
            scheduler = world.world.scheduler
            world.network.fate = lambda what, process: trace.append((scheduler.now, what))  # noqa: B023
            for number in range(1, 5):
                assert writer.flush(f"t{number}", f"t{number + 1}")
            runs.append(trace)
    assert runs[0] == runs[1] != runs[2]


def test_a_plain_socket_does_what_a_real_one_does() -> None:
    with redis_world(seed=1) as world:

        def work() -> None:
            with sockets.socket.create_connection(("redis", 6379), 1.0) as plain:
                assert plain.getpeername() == ("redis", 6379)
                poll = sockets.select.poll()
                poll.register(plain, real_select.POLLIN)
                assert poll.poll(0) == []
                assert plain.sendmsg([b"PING\r\n", b"ECHO x\r\n"]) == 14
                assert poll.poll(1000) == [(plain.fileno(), real_select.POLLIN)]
                assert plain.recv(1, real_socket.MSG_PEEK) == b"+"
                buffer = bytearray(7)
                assert plain.recv_into(buffer) == 7
                assert bytes(buffer) == b"+PONG\r\n"
                assert plain.recv(100) == b"$1\r\nx\r\n"
                with pytest.raises(TimeoutError):
                    plain.recv(1)
                plain.setblocking(False)
                with pytest.raises(BlockingIOError):
                    plain.recv(1)
                plain.settimeout(None)
                plain.sendall(b"QUIT\r\n")
                assert (plain.recv(100), plain.recv(100)) == (b"+OK\r\n", b"")
            with pytest.raises(OSError, match="Bad file descriptor"):
                plain.recv(1)
            with pytest.raises(ConnectionRefusedError):
                sockets.socket.create_connection(("redis", 1), 1.0)
            with pytest.raises(real_socket.gaierror):
                sockets.socket.getaddrinfo("elsewhere", 6379)

        world.do(work)


def test_messages_come_over_connections_that_have_subscribed() -> None:
    with redis_world(seed=1) as world:

        def hear() -> bytes:
            with sockets.socket.create_connection(("redis", 6379), 1.0) as plain:
                plain.sendall(b"SUBSCRIBE news\r\n")
                plain.recv(100)
                return bytes(plain.recv(100))

        def say() -> bytes:
            with sockets.socket.create_connection(("redis", 6379), 1.0) as plain:
                while True:
                    plain.sendall(b"PUBLISH news x\r\n")
                    if (count := bytes(plain.recv(100))) != b":0\r\n":
                        return count

        heard = world.together({"hears": hear, "says": say})
    assert heard == {"hears": b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n", "says": b":1\r\n"}
