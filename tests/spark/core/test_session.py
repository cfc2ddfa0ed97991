"""Spark sessions: what they hide and say, what they send to executors, and how they end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local import java_home
from leftfold.spark.core.job import limited, spark_runner
from leftfold.spark.core.jvm import private_folder, quiet_launch
from leftfold.spark.core.session import SparkSettings, packed
from leftfold.spark.core.task_io import cause_of
from tests.waiting import WAIT_SECONDS

SESSION = """
import sys
from contextlib import suppress
import psutil
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from leftfold.errors import ConfigurationError
from leftfold.local import java_home
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.core.offsets import topic_starts

def read_without_jars():
    try:
        topic_starts(spark, ["baskets.events"], {"bootstrap.servers": "127.0.0.1:1"})
    except ConfigurationError as error:
        return str(error)

def ask_wrongly():
    with suppress(AnalysisException):
        spark.sql("SELECT nope").collect()
        raise AssertionError("it has no column nope")

properties = {
    "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword='canary one\\\\' -Dsecond=yes",
    "spark.ssl.trustStorePassword": "canary\\\\two",
    "spark.leftfold.sasl.password": " canary=three: # ü",
    "spark.leftfold.redis": "rediss://u:canary@h:1/0",
}
settings = SparkSettings(master="local[1]", java_home=java_home(), properties=properties)
with spark_session(settings) as spark:
    jvm = spark.sparkContext._jvm.java.lang.System
    assert jvm.getProperty("javax.net.ssl.trustStorePassword") == "canary one\\\\", "the JVM has it"
    assert jvm.getProperty("second") == "yes"
    assert jvm.getProperty("spark.ssl.trustStorePassword") == "canary\\\\two"
    assert {name: spark.conf.get(name) for name in properties} == properties
    assert spark.range(3).count() == 3
    assert "SparkSettings(jars=leftfold.local.spark_jars())" in read_without_jars()
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    for process in family:
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # one that has ended has no command line
            print(" ".join(process.cmdline()))
    ask_wrongly()
    print("the twin", file=sys.stderr)
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = False
    ask_wrongly()
"""


@pytest.mark.slow
def test_no_command_line_holds_a_property_the_log_is_the_users_alone_and_a_wrong_query_is_quiet(tmp_path: Path) -> None:
    cache, defaults = tmp_path / "cache", tmp_path / "theirs"
    defaults.write_text("spark.leftfold.theirs still-read\n", "utf-8")
    arguments = f"--properties-file {defaults} --conf spark.leftfold.other=1 pyspark-shell"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": arguments, "XDG_CACHE_HOME": str(cache)}
    words = [sys.executable, "-"]
    done = subprocess.run(words, input=SESSION, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "SparkSubmit" in done.stdout
    assert "canary" not in done.stdout
    log = cache / "leftfold" / "spark.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    before, behind = done.stderr.split("the twin\n")
    assert before == ""
    assert "org.apache.spark.sql.AnalysisException" in behind, "which is what is kept quiet"


def test_the_log_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", "utf-8")
    (tmp_path / "spark.log").symlink_to(victim)
    with pytest.raises(InfrastructureError, match=r"spark\.log"), quiet_launch(private_folder(tmp_path)):
        os.write(2, b"warning")
    assert victim.read_text("utf-8") == "mine"


def test_a_long_log_is_replaced_by_a_new_one_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    for text in ("a", "b", "c"):
        with quiet_launch(private_folder(tmp_path)):
            os.write(2, text.encode() * 1_000_001)
    assert log.read_bytes()[:1] == b"c"
    assert log.stat().st_size == 1_000_001
    assert (tmp_path / "spark.log.before").read_bytes()[:1] == b"b"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cache_that_is_not_there_or_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "no-directory"
    file.touch()
    with quiet_launch(private_folder(file / "cache")):
        pass
    assert len(list(tmp_path.glob("leftfold-*/spark.log"))) == 1
    (cache := tmp_path / "cache").mkdir()
    assert private_folder(cache) == cache
    cache.chmod(0o777)
    found = private_folder(cache)
    assert found.name.startswith("leftfold-")
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_the_warehouse_is_of_this_user_alone(spark: SparkSession) -> None:
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    assert warehouse == SparkSettings().cache / "warehouse"


@pytest.mark.parametrize("marker", [["__init__.py"], []], ids=["package", "namespace"])
def test_a_package_that_is_sent_to_executors_is_imported_from_its_zip(tmp_path: Path, marker: list[str]) -> None:
    package, folder = tmp_path / "stall", tmp_path / "packed"
    (package / "inner").mkdir(parents=True)
    (package / "__pycache__").mkdir()
    folder.mkdir()
    for name in marker:
        (package / name).touch()
        (package / "inner" / name).touch()
    (package / "__pycache__" / "goods.pyc").write_bytes(b"stale")
    (package / "inner" / "goods.py").write_text("APPLES = 3\n")
    found = packed(package, folder)
    code = "import stall.inner.goods as goods; print(goods.APPLES, goods.__file__)"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(found)!r}); {code}"]
    reported = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    assert reported.startswith(f"3 {found}")


def test_modules_and_archives_are_sent_as_they_are_and_nothing_that_python_cannot_import(tmp_path: Path) -> None:
    for name in ("shop.py", "shop.zip", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "no-package").mkdir()
    for name in ("shop.py", "shop.zip"):
        assert packed(tmp_path / name, tmp_path) == tmp_path / name
    for name in ("absent", "no-package", "notes.txt"):
        with pytest.raises(ConfigurationError, match=f"{name} is no package directory"):
            packed(tmp_path / name, tmp_path)


START = """
import time
from leftfold.local import java_home
from leftfold.spark import SparkSettings, spark_session
print("starting", flush=True)
with spark_session(SparkSettings(master="local[1]", java_home=java_home())):
    print("started", flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.faults
@pytest.mark.parametrize("after", [0.6, 1.2, 1.8])
def test_an_interrupted_start_leaves_no_java_behind(after: float) -> None:
    java_home()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", START], **pipes, env={**os.environ}) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "starting\n"
        time.sleep(after)  # the moments themselves are the matter of this test
        started = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        assert run.wait(240.0) != 0
        reported, ours = run.stderr.read(), "interrupted; Spark is starting and can be stopped only then"
        # A fast machine may have started it by 1.2 s; a slow one has begun nothing at 0.6.
        assert ours in reported or ((after > 1 or not started) and "KeyboardInterrupt" in reported), reported
        assert psutil.wait_procs(started, timeout=240.0)[1] == []


@pytest.mark.parametrize(
    ("came", "reported"),
    [(KeyboardInterrupt, KeyboardInterrupt), (RuntimeError, InfrastructureError)],
    ids=["", "twin"],
)
def test_ctrl_c_stays_one_even_when_the_jvm_hangs_up_on_the_way_out(
    came: type[BaseException], reported: type[BaseException]
) -> None:
    def asked() -> None:
        try:
            try:
                raise came
            finally:
                raise Py4JNetworkError("Answer from Java side is empty")  # as when PySpark forgets where it was called
        except Py4JNetworkError as error:
            raise cause_of(error) from error

    with pytest.raises(reported):
        asked()


def test_a_query_that_never_ends_is_cancelled_and_the_next_one_is_answered(spark: SparkSession) -> None:
    # Tasks look every thousand rows whether they are cancelled; those of a join might do so after minutes only.
    endless = "SELECT sum(id % 7) FROM range(1000000000000000000)"
    said = pytest.raises(InfrastructureError, match="it took more than 1 s and was cancelled")
    with said, limited(spark.sparkContext, 1.0):
        list(spark.sql(endless).toLocalIterator())
    with limited(spark.sparkContext, WAIT_SECONDS):
        assert [tuple(row) for row in spark.sql("SELECT 1").toLocalIterator()] == [(1,)]


def test_ctrl_c_in_a_job_stays_one_when_the_jvm_does_not_answer_that_the_job_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    def hung_up(tag: str) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr("leftfold.spark.core.job._streams", interrupted)
    context = SimpleNamespace(addJobTag=lambda tag: None, cancelJobsWithTag=hung_up)
    session: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=lambda *_: "127.0.0.1"))
    plan: Any = SimpleNamespace(stream_keyed=True)
    job: Any = None
    with pytest.raises(KeyboardInterrupt):
        spark_runner(session)(job, plan, lambda count: None)


DEATH = """
import os, sys
from pyspark import SparkContext
from leftfold.local import java_home
from leftfold.spark import SparkSettings, open_session, spark_session
from leftfold.spark.sql.query_results import Answer, AnswerLimit
from leftfold.spark.core.jvm import is_alive
from leftfold.spark.core.task_io import cause_of

LARGE = "SELECT id, repeat('x', 1000) FROM range(0, 2000000, 1, 1)"  # in one partition, and four times the memory
WITHIN_A_TASK = "SELECT max(length(repeat('x', 1500000000 + cast(id AS int)))) FROM range(1)"
settings = SparkSettings(master="local[1]", memory="512m", java_home=java_home())

def failure(work):
    try:
        work()
    except Exception as error:
        return str(cause_of(error))

with spark_session(settings) as spark:
    if sys.argv[1] == "a large answer":
        answer = Answer(spark.sql(LARGE), AnswerLimit(bytes=10 << 20))
        count = sum(1 for _ in answer)
        print(answer.cut, 0 < count < 12_000)
        assert is_alive() and open_session(settings).sparkContext is spark.sparkContext
    elif sys.argv[1] == "twin: all of it":
        print(failure(lambda: sum(1 for _ in spark.sql(LARGE).toLocalIterator())))
    elif sys.argv[1] == "a question that no memory is enough for":
        print(failure(lambda: spark.sql(WITHIN_A_TASK).collect()))
    else:
        process = SparkContext._gateway.proc
        process.kill()
        process.wait()
        print(failure(lambda: spark.sql("SELECT 1").collect()))
    print(open_session(settings).sql("SELECT 2 AS two").collect()[0].two)
print(SparkContext._active_spark_context)
with spark_session(settings) as spark:
    print(spark.sql("SELECT 3 AS three").collect()[0].three)
"""
DIED = "Spark has died or run out of memory; ask for less, or give it more by LEFTFOLD_SPARK_MEMORY, as in 4g"


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a large answer", "bytes True"),
        ("twin: all of it", DIED),
        ("a question that no memory is enough for", DIED),
        ("killed", DIED),
    ],
)
def test_behind_a_spark_that_died_the_next_question_is_answered(what: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", DEATH, what], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [said, "2", "None", "3"], done.stderr
    assert done.stderr == ""
