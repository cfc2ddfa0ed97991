"""Event loops of simulated processes: several at once, in virtual time, over simulated connections."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leftfold.errors import InfrastructureError
from leftfold.ports.flush import Generation, Registry
from leftfold.ports.queries import Rows
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.protocol import packed
from leftfold.redis.keys import registry_key
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from leftfold.testing.simulation.scheduler import SimulatedProcess
from leftfold.testing.simulation.stand_ins.event_loop import asyncio
from tests.simulation.redis_server.redis_world import RedisWorld, redis_world


def _generation(world: RedisWorld) -> Generation:
    generation = new_generation(buckets=1)

    def begin() -> None:
        store = world.store()
        assert store.create_marks(generation, {0: checkpoint("", 0)})
        assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
        assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])

    world.do(begin)
    return generation


def _looping(work: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Any]:
    return lambda: asyncio.run(work())


def test_loops_of_several_processes_run_side_by_side() -> None:
    with redis_world(seed=1) as world:
        order: list[tuple[str, float]] = []

        def steps(name: str, seconds: float) -> Callable[[], Any]:
            async def work() -> None:
                for _ in range(3):
                    await asyncio.sleep(seconds)
                    order.append((name, round(asyncio.get_running_loop().time(), 3)))

            return _looping(work)

        world.together({"a": steps("a", 1.0), "b": steps("b", 0.8)})
    assert order == [("b", 0.8), ("a", 1.0), ("b", 1.6), ("a", 2.0), ("b", 2.4), ("a", 3.0)]


def test_a_loop_continues_while_a_thread_of_it_waits() -> None:
    with redis_world(seed=1) as world:
        seen: list[float] = []

        async def work() -> float:
            thread = asyncio.to_thread(world.world.scheduler.wait, 5.0)
            ticks = asyncio.create_task(tick())
            await thread
            ticks.cancel()
            return float(asyncio.get_running_loop().time())

        async def tick() -> None:
            while True:
                seen.append(asyncio.get_running_loop().time())
                await asyncio.sleep(1.0)

        assert world.do(_looping(work)) == pytest.approx(5.0, abs=0.01)
    assert len(seen) == 5


def test_what_a_thread_raises_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def work() -> None:
        await asyncio.to_thread(fail)

    with redis_world(seed=1) as world, pytest.raises(ValueError, match="no"):
        world.do(_looping(work))


def test_a_server_that_does_not_answer_is_given_up_in_virtual_time() -> None:
    with redis_world(seed=1) as world:
        generation = _generation(world)

        async def work() -> list[float]:
            store, ends = world.store(), []
            await store.aask(Rows(generation, ((0, "a"),)))
            for stopped in (True, False):
                world.host.is_stopped = stopped
                began = asyncio.get_running_loop().time()
                if stopped:
                    with pytest.raises(InfrastructureError):
                        await store.aask(Rows(generation, ((0, "a"),)))
                else:
                    assert (await store.aask(Rows(generation, ((0, "a"),)))).rows[0] is not None
                ends.append(asyncio.get_running_loop().time() - began)
            return ends

        late, soon = world.do(_looping(work))
    assert late == pytest.approx(2.0, abs=0.01)
    assert soon < 0.1


def test_a_lost_connection_is_opened_again() -> None:
    with redis_world(seed=1) as world:
        generation = _generation(world)

        async def work() -> None:
            store = world.store()
            await store.aask(Rows(generation, ((0, "a"),)))
            world.redis.restart()
            with pytest.raises(InfrastructureError):
                await store.aask(Rows(generation, ((0, "a"),)))
            assert (await store.aask(Rows(generation, ((0, "a"),)))).rows[0] is not None
            world.host.kill()
            with pytest.raises(InfrastructureError):
                await store.aask(Rows(generation, ((0, "a"),)))
            with pytest.raises(InfrastructureError):
                await store.aask(Rows(generation, ((0, "a"),)))

        world.do(_looping(work))


def test_a_killed_process_takes_its_loop_with_it_and_others_hear_of_flushes(caplog: pytest.LogCaptureFixture) -> None:
    with redis_world(seed=1) as world:
        generation = _generation(world)
        heard: list[str] = []

        def waiter(name: str) -> Callable[[], Any]:
            async def work() -> None:
                store = world.store()
                waiter = await store.alisten(generation, checkpoint("", 9).position)
                await waiter.wait(60.0)
                heard.append(name)

            return _looping(work)

        tasks = [world.world.start(name, waiter(name)) for name in ("a", "b")]
        world.pass_time(1.0)
        assert len(world.redis.channels) == 1
        tasks[0].process.end(-9)
        world.pass_time(1.0)
        (hearers,) = world.redis.channels.values()
        assert len(hearers) == 1
        assert world.do(
            lambda: RedisViewStore(world.settings).flush([flush_of(generation, 0, "t1", "t2", row("b"), at=9)])
        )
        world.pass_time(0.02)
        assert heard == ["b"], "a notice comes sooner than a look at the marks would"
    assert caplog.records == []


def test_what_others_forge_in_redis_neither_disconnects_a_waiting_reader_nor_ends_its_polling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_world(seed=1) as world:
        generation = _generation(world)

        async def work() -> None:
            store = world.store()
            waiter = await store.alisten(generation, checkpoint("", 9).position)
            (name,) = world.redis.channels
            (hearer,) = world.redis.channels[name]
            writer = world.redis.open(lambda data: None)
            writer.receive(packed(b"PUBLISH", name, b"no position"))
            await asyncio.sleep(1.0)
            assert list(world.redis.channels[name]) == [hearer]
            pointer, forged = f"live:{generation.pointer}".encode(), b"\xff"
            writer.receive(packed(b"HSET", registry_key(generation.view), pointer, forged))
            await asyncio.sleep(1.0)
            writer.receive(packed(b"HSET", registry_key(generation.view), pointer, generation.id.encode()))
            hearer.drop()
            await asyncio.sleep(1.0)
            assert len(world.redis.channels[name]) == 1, "polling connects again"
            waiter.close()

        world.do(_looping(work))
    assert caplog.records == []


def test_a_thread_is_woken_by_the_loop_that_listens_for_it() -> None:
    with redis_world(seed=1) as world:
        generation = _generation(world)

        def listen() -> float:
            store = world.store()
            bell = store.listen(generation, checkpoint("", 9).position)
            began = world.world.scheduler.now
            bell.wait(60.0)
            bell.close()
            waited = world.world.scheduler.now - began
            store.close()
            return waited

        def flush() -> float:
            world.world.scheduler.wait(3.0)
            assert world.store().flush([flush_of(generation, 0, "t1", "t2", row("b"), at=9)])
            return 0.0

        waited = world.together({"listens": listen, "flushes": flush})["listens"]
    assert waited == pytest.approx(3.0, abs=0.1)


def test_whichever_call_a_process_is_killed_at_its_loop_ends(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1, 99):
        with redis_world(seed=number) as world:
            generation = _generation(world)

            async def work(world: RedisWorld = world, generation: Generation = generation) -> None:
                store = world.store()
                waiter = await store.alisten(generation, checkpoint("", 9).position)
                await asyncio.gather(*[store.aask(Rows(generation, ((0, "a"),))) for _ in range(3)], waiter.wait(0.1))

            def strike(process: SimulatedProcess, what: str, number: int = number) -> None:
                if process.calls == number:
                    process.end(-9)

            task = world.world.start("victim", _looping(work))
            task.process.strike = strike
            world.pass_time(1.0)
            assert task.is_done
            assert all(link.process is not task.process for link in world.host.links)
            if task.process.code is None:
                assert task.error is None
                break
    else:
        pytest.fail("it makes more calls than were tried")
    assert caplog.records == []
