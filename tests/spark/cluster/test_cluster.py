"""Commands and killed executors on a real standalone cluster: each of their writes is one's last, and workers die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import psutil
import pytest
from redis import Redis

from leftfold.engine.rebuild.result import Agreement
from leftfold.local import java_home
from leftfold.spark.core.session import packed
from leftfold.spark.queries.testing import rows
from tests.domains.ledger import Moved, by_owner, by_tag, histories, stranger, summary
from tests.redis.server import RedisServer
from tests.servers import secret_url
from tests.spark.cluster.driver import NEIGHBOURS, Driver, KeptView
from tests.spark.cluster.standalone import CODE, ROOT, SPARK_HOME, StandaloneCluster, standalone
from tests.spark.conftest import Shop
from tests.spark.oracle import logged, truth
from tests.spark.queries.views import owner_sums
from tests.waiting import WAIT_SECONDS
from tests.whole import assert_whole

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

Keep = Callable[..., KeptView]
POINTS = {
    "before its first write": ("before", 1),
    "within its first write": ("within", 1),
    "between two writes": ("behind", 1),
    "behind its second write": ("behind", 2),
}
"""Where an executor is killed, by what its task writes."""
STREAM, CARELESS, LATE, UNWATCHED, QUERY = range(1, 6)
"""Databases."""


def killed_at(*cases: tuple[Any, Sequence[str]]) -> pytest.MarkDecorator:
    """The views of a test with their points."""
    flat = [(view, point) for view, points in cases for point in points]
    return pytest.mark.parametrize(("view", "point"), flat, ids=[f"{view.name}, {point}" for view, point in flat])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.fill(2)
        yield cluster


# The commands come first: behind them a driver stays that takes every core.
SENT = tuple(option for path in CODE for option in ("--py-files", str(path)))


def typed(
    cluster: StandaloneCluster, shop: Shop, command: Sequence[str], *options: str
) -> subprocess.CompletedProcess[str]:
    """What a command came to whose tasks run on the cluster."""
    return subprocess.run(
        [*command, "--master", cluster.url, "--json", *shop.addresses, *options],
        cwd=ROOT,
        env={**os.environ, "LEFTFOLD_SPARK_HOST": "127.0.0.1", "LEFTFOLD_SPARK_EXECUTOR_MEMORY": "512m"},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def test_a_verification_sends_the_code_that_workers_lack(cluster: StandaloneCluster, shop: Shop) -> None:
    cluster.fill(2)
    command = [sys.executable, "-m", "leftfold.cli", "verify", summary.name, by_owner.name, "--deep"]
    command += ["--engine", "spark", "--app", "tests.domains.ledger:app"]
    done = typed(cluster, shop, command, *SENT)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["equal"] for line in done.stdout.splitlines()] == [True, True]
    generation = shop.views[by_owner].describe().generation
    with closing(Redis.from_url(secret_url(shop.redis))) as redis:
        (row,) = redis.keys(f"v:{{{by_owner.name}:{generation}:*}}:o%2F3")
        before = redis.hget(row, "total")
        redis.hset(row, "total", "0.07")
        try:
            done = typed(cluster, shop, command, *SENT)
        finally:
            redis.hset(row, "total", before)
    assert done.returncode == 3, done.stderr
    assert [[row["key"] for row in json.loads(line)["rows"]] for line in done.stdout.splitlines()] == [[], ["o%2F3"]]
    assert typed(cluster, shop, command).returncode not in (0, 3), "the twin: without the code no task runs"


def test_spark_submit_runs_the_command_line(cluster: StandaloneCluster, shop: Shop) -> None:
    cluster.fill(2)
    folder, before = cluster.folder, cluster.applications()
    packages = ",".join(str(packed(path, folder)) for path in CODE)
    java = [str(java_home() / "bin" / "java"), "-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.deploy.SparkSubmit"]
    submit = ["--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    submit += ["--py-files", packages, str(ROOT / "framework" / "leftfold" / "cli" / "__main__.py")]
    leftfold = ["rebuild", by_owner.name, "--master", "submitted", "--app", "tests.domains.ledger:app", "--json"]
    leftfold += shop.addresses
    environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)]), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*java, *submit, *leftfold],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (result,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (result["view"], result["agreement"]) == (by_owner.name, Agreement.EQUAL.value)
    assert cluster.applications() == before + 1


@pytest.fixture(scope="module")
def driver(
    cluster: StandaloneCluster, shop: Shop, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    with redis.client() as client:
        client.flushall()
    with Driver(cluster.url, shop.kafka, tmp_path_factory.mktemp("driver")) as driver:
        yield driver


@pytest.fixture
def keep(cluster: StandaloneCluster, driver: Driver, shop: Shop, redis: RedisServer) -> Iterator[Keep]:
    """Has the driver keep a view, on two workers."""
    cluster.fill(2)
    with ExitStack() as stack:
        yield lambda view, **reported: stack.enter_context(closing(KeptView(driver, shop, redis, view, **reported)))


def kill(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait(WAIT_SECONDS)


def lose(cluster: StandaloneCluster, driver: Driver, work: Callable[[], object]) -> Callable[[], str]:
    """Kills the worker whose task is about to write; returns what lets that task write, and says what came of it."""
    folder = driver.doom.folder
    for name in ("late", "go", "outcome"):
        (folder / name).unlink(missing_ok=True)
    driver.doom.arm("late", 1)
    work()
    task = psutil.Process(int(driver.reported("late")))
    kill(cluster.worker_of(task.pid))

    def let_go() -> str:
        assert task.is_running(), "the task that was lost with its worker is a zombie by now"
        try:
            (folder / "go").touch()
            return driver.reported("outcome")
        finally:
            if task.is_running():
                task.kill()

    return let_go


@killed_at(
    (summary, tuple(POINTS)),
    (by_owner, ("within its first write", "between two writes")),
    (by_tag, ("behind its second write",)),
)
def test_a_stream_whose_executor_is_killed_folds_each_event_once(keep: Keep, view: Any, point: str) -> None:
    kept = keep(view, database=STREAM)
    kept.write_fatally(POINTS[point], lambda nth: kept.write(200 + 1000 * nth))
    kept.assert_whole()


def test_twin_whose_tasks_do_not_ask_the_mark_folds_events_twice(keep: Keep) -> None:
    kept = keep(summary, database=CARELESS, forgetful=True)
    kept.write_fatally(("behind", 1), kept.gain)
    assert kept.rows() != kept.truth()


def late(kept: KeptView, cluster: StandaloneCluster) -> str:
    """What comes of the write of a task whose worker was killed, when others have long continued."""
    one, other = NEIGHBOURS
    kept.settle(kept.move(other, "1.00"))
    let_go = lose(cluster, kept.driver, lambda: kept.move(one, "2.00"))
    kept.settle(kept.move(other, "4.00", "8.00"))
    outcome = let_go()
    kept.settle(kept.move(one, "16.00"))
    return outcome


def test_a_stream_continues_when_a_worker_is_killed_and_what_its_task_writes_late_is_refused(
    keep: Keep, cluster: StandaloneCluster
) -> None:
    kept = keep(summary, database=LATE)
    assert late(kept, cluster) == "refused"
    kept.assert_whole()


def test_twin_that_does_not_watch_the_mark_is_set_back_by_a_late_task(keep: Keep, cluster: StandaloneCluster) -> None:
    kept = keep(summary, database=UNWATCHED, watched=False)
    assert late(kept, cluster) == "written"
    assert kept.rows() != kept.truth()


def test_a_query_view_continues_when_workers_are_killed(
    keep: Keep, cluster: StandaloneCluster, driver: Driver, shop: Shop
) -> None:
    begun: list[KeptView] = []
    let_go = lose(cluster, driver, lambda: begun.append(keep(owner_sums, database=QUERY, do="query")))
    (kept,) = begun
    kept.settle()
    assert let_go() == "refused"
    kept.settle(kept.write(221))
    cluster.fill(2)
    position = kept.write(222)
    kill(cluster.workers[0])
    kept.settle(position | kept.write(223))
    moves = [event for event in logged(shop) if isinstance(event, Moved)]
    kept.assert_whole(rows(owner_sums, *moves, spark=shop.spark))


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_a_rebuild_outlives_a_worker_whose_task_cannot_write_behind_the_swap(
    cluster: StandaloneCluster, driver: Driver, shop: Shop, view: Any
) -> None:
    """Without the phase it could, as tests/redis shows."""
    cluster.fill(2)
    let_go = lose(cluster, driver, lambda: driver.begin("rebuild", shop.redis, view=view.name))
    assert driver.answer() == {"agreement": Agreement.EQUAL.value}
    assert_whole(shop.store, view, truth(shop, view))
    shop.views[view].wait_reached(shop.send(histories(stranger(21), 100)), timeout=WAIT_SECONDS)
    assert let_go() == "refused"
    assert_whole(shop.store, view, truth(shop, view))


@killed_at((summary, tuple(POINTS)), (by_owner, ("within its first write", "between two writes")))
def test_a_rebuild_whose_executor_is_killed_writes_each_row_once(
    cluster: StandaloneCluster, driver: Driver, shop: Shop, view: Any, point: str
) -> None:
    cluster.fill(2)
    (met,) = driver.doom.arm(*POINTS[point])
    driver.begin("rebuild", shop.redis, view=view.name)
    assert driver.answer() == {"agreement": Agreement.EQUAL.value}
    assert met.exists(), "no task wrote so often"
    assert_whole(shop.store, view, truth(shop, view))


def test_twin_where_every_attempt_is_killed_fails_and_leaves_readers_what_they_had(
    cluster: StandaloneCluster, driver: Driver, shop: Shop
) -> None:
    cluster.fill(2)
    before = shop.store.registry(summary.name)
    driver.doom.arm("behind", 1, times=20)
    driver.begin("rebuild", shop.redis, view=summary.name)
    reported = driver.answer()
    driver.doom.disarm()
    assert "InfrastructureError: Spark could not do it" in reported["error"]
    assert shop.store.registry(summary.name) == before
    driver.begin("rebuild", shop.redis, view=summary.name)
    assert driver.answer() == {"agreement": Agreement.EQUAL.value}
    assert_whole(shop.store, summary, truth(shop, summary))
