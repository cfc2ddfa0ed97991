"""Commands on a real standalone cluster send the code that its workers lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from redis import Redis

from leftfold.engine.rebuild.result import Agreement
from leftfold.local import java_home
from leftfold.spark.core.session import packed
from tests.domains.ledger import by_owner, by_tag, summary
from tests.servers import secret_url
from tests.spark.cluster.standalone import CODE, ROOT, SPARK_HOME, StandaloneCluster, standalone
from tests.spark.conftest import Shop

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

REBUILD_SECONDS = 240.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


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
        timeout=REBUILD_SECONDS,
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
        cwd=folder, env=environment, capture_output=True, text=True, timeout=REBUILD_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    (result,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (result["view"], result["agreement"]) == (by_owner.name, Agreement.EQUAL.value)
    assert cluster.applications() == before + 1
