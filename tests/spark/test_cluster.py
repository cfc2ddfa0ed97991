"""Rebuilds on a real standalone cluster: workers die on the way, and what they leave behind spoils nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from leftfold.engine.rebuild.result import Agreement
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.local import java_home
from leftfold.model import keys as names
from leftfold.spark.core.session import packed
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.servers import secret_url
from tests.spark.cluster import SPARK_HOME, StandaloneCluster, standalone
from tests.spark.conftest import WAIT_SECONDS, Shop
from tests.spark.late_rebuild import CODE, ROOT
from tests.spark.oracle import checksum_of, truth
from tests.waiting import wait_until
from tests.whole import assert_whole
from tests.worker.receipts import behind

pytestmark = [pytest.mark.servers, pytest.mark.faults]

VIEWS = (summary, by_owner, by_tag)
REBUILD_SECONDS = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def rows(shop: Shop, view: Any) -> dict[Any, Any]:
    parked = shop.views[view].describe().parked
    return {key: row for key, row in shop.views[view].items() if key not in parked}


@contextmanager
def late_rebuild(cluster: StandaloneCluster, shop: Shop, view: Any, folder: Path, *options: str) -> Iterator[Path]:
    """A rebuild has ended whose first writer was lost with its worker; the folder lets that one go on."""
    cluster.fill(2)
    command = [sys.executable, "-m", "tests.spark.late_rebuild", cluster.url, shop.kafka.bootstrap_servers]
    command += [secret_url(shop.redis), str(folder), view.name, *options]
    errors = folder / "errors"
    with errors.open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, cwd=ROOT, text=True)
    late: psutil.Process | None = None
    try:
        wait_until(
            lambda: (folder / "stopped").exists() or process.poll() is not None,
            lambda: f"a task to begin writing: {errors.read_text()}",
            REBUILD_SECONDS,
        )
        assert (folder / "stopped").exists(), errors.read_text()
        late = psutil.Process(int((folder / "stopped").read_text()))
        worker = cluster.worker_of(late.pid)
        worker.send_signal(signal.SIGKILL)
        worker.wait(WAIT_SECONDS)
        told = process.communicate(timeout=REBUILD_SECONDS)[0]
        assert process.returncode == 0, errors.read_text()
        assert told.strip() == Agreement.EQUAL.value
        assert late.is_running(), "the task that was lost with its worker is a zombie by now"
        yield folder
    finally:
        process.kill()
        process.wait()
        if late is not None and late.is_running():
            late.kill()


def move_on(shop: Shop, seed: int) -> None:
    """More history, folded by the projector into the generation that the rebuild made."""
    with KafkaClient(app.name, shop.kafka) as client:
        answers = client.send_many(list(histories(stranger(seed), 300)), timeout=WAIT_SECONDS)
    shop.wait_stable(behind(answers))
    with closing(KafkaBulkLog(shop.kafka)) as log:
        ends = log.stable_ends([names.events("ledgers")])
    # Behind the last event is the marker of its transaction, which moves checkpoints as well.
    for view in app.views:
        wait_until(lambda view=view: shop.views[view].describe().position.covers(ends), f"{view.name} to be at the end")  # type: ignore[misc]


def let_go(folder: Path) -> str:
    """What came of the late task's write."""
    (folder / "go").touch()
    wait_until((folder / "outcome").exists, "the late task to write, or not", WAIT_SECONDS)
    return (folder / "outcome").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_rebuild_outlives_the_worker_that_it_runs_on(
    cluster: StandaloneCluster, shop: Shop, view: Any, tmp_path: Path
) -> None:
    with late_rebuild(cluster, shop, view, tmp_path):
        assert_whole(shop.store, view, truth(shop, view))
        move_on(shop, 21)
        assert let_go(tmp_path) == "fenced"
        assert_whole(shop.store, view, truth(shop, view))


@pytest.mark.slow
def test_twin_without_the_phase_a_lost_task_spoils_the_generation(
    cluster: StandaloneCluster, shop: Shop, tmp_path: Path
) -> None:
    with late_rebuild(cluster, shop, by_owner, tmp_path, "--unchecked"):
        move_on(shop, 22)
        assert let_go(tmp_path) == "written"
        assert rows(shop, by_owner) != truth(shop, by_owner)
        assert int(shop.views[by_owner].describe().checksum, 16) != checksum_of(by_owner, rows(shop, by_owner))
    assert shop.rebuild(by_owner).run().agreement is Agreement.EQUAL, "the rebuild wrote the right rows again"


SENT = tuple(option for path in CODE for option in ("--py-files", str(path)))


def typed(
    cluster: StandaloneCluster, shop: Shop, command: Sequence[str], *options: str
) -> subprocess.CompletedProcess[str]:
    """What a command came to whose tasks run on the cluster."""
    servers = ["--kafka", shop.kafka.bootstrap_servers, "--redis", secret_url(shop.redis)]
    return subprocess.run(
        [*command, "--master", cluster.url, "--json", *servers, *options],
        cwd=ROOT,
        env={**os.environ, "LEFTFOLD_SPARK_HOST": "127.0.0.1", "LEFTFOLD_SPARK_EXECUTOR_MEMORY": "512m"},
        capture_output=True,
        text=True,
        timeout=REBUILD_SECONDS,
        check=False,
    )


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_command_line_sends_the_code_that_workers_lack(cluster: StandaloneCluster, shop: Shop) -> None:
    cluster.fill(2)
    command = [sys.executable, "-m", "leftfold.cli", "rebuild", summary.name, by_tag.name]
    command += ["--app", "tests.domains.ledger:app"]
    done = typed(cluster, shop, command, *SENT)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["view"], result["agreement"]) for result in results] == [
        (summary.name, Agreement.EQUAL.value), (by_tag.name, Agreement.EQUAL.value),
    ]  # fmt: skip


@pytest.mark.slow
def test_spark_submit_runs_the_command_line(cluster: StandaloneCluster, shop: Shop) -> None:
    cluster.fill(2)
    folder, before = cluster.folder, cluster.applications()
    packages = ",".join(str(packed(path, folder)) for path in CODE)
    java = [str(java_home() / "bin" / "java"), "-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.deploy.SparkSubmit"]
    submit = ["--master", cluster.url, "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m"]
    submit += ["--py-files", packages, str(ROOT / "framework" / "leftfold" / "cli" / "__main__.py")]
    leftfold = ["rebuild", by_owner.name, "--master", "submitted", "--app", "tests.domains.ledger:app", "--json"]
    leftfold += ["--kafka", shop.kafka.bootstrap_servers, "--redis", secret_url(shop.redis)]
    environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)]), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*java, *submit, *leftfold],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=REBUILD_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (result,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (result["view"], result["agreement"]) == (by_owner.name, Agreement.EQUAL.value)
    assert cluster.applications() == before + 1
