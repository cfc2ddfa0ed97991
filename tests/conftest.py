"""Where servers come from, one set for the whole run: `pytest --servers=embedded|containers|external`."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from time import monotonic, tzset
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.watchdog import Watchdog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers import Addresses

SPARK = (
    "archive/",
    "cli/log/",
    "cli/test_journey.py",
    "cli/test_printed.py",
    "cli/test_rights.py",
    "reference/",
    "spark/",
)
"""The folders and files of tests that start it."""
TOGETHER = {
    "archive": "archive",
    "cli/log/test_log.py": "archive",
    "cli/test_journey.py": "archive",
    "cli/test_printed.py": "archive",
    "kafka": "kafka",
    "redis": "redis",
    "reference/test_reports.py": "archive",
    "spark": "spark",
    "worker": "worker",
}
"""Folders and files whose tests share servers or a Spark session: those of one name are tested by one process.

Each name is as long as a process may take alone. A second Spark session costs less than waiting for the first.
"""
LONG = (
    "redis",
    "spark",
    "archive",
    "reference/test_reports.py",
    "worker",
    "simulation/test_schedules.py",
    "cli/test_journey.py",
    "cli/log/test_log.py",
    "cli/test_printed.py",
    "kafka",
    "simulation/test_write_path.py",
    "cli/test_rights.py",
    "simulation/test_planted.py",
    "simulation/test_conformance.py",
    "faust",
    "process",
    "cli",
    "reactions",
)
"""What takes longest, in the order to begin with."""
_WATCHDOG = pytest.StashKey[Watchdog]()
_BEGUN, _ENDED = pytest.StashKey[float](), pytest.StashKey[dict[str, float]]()
_SERVED = pytest.StashKey[bool]()
"""Whether a test of the file that is tested now was on servers."""
# A busy machine is no bug; in CI every run tries the same examples. Where they are hard to meet, a test asks for more.
hypothesis.settings.register_profile(
    "leftfold",
    max_examples=50,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
hypothesis.settings.load_profile("leftfold")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that chooses the servers."""
    parser.addoption(
        "--servers",
        choices=("embedded", "containers", "external"),
        default="embedded",
        help="where Kafka and Redis come from: child processes of this run (default), containers of the images in "
        "docker-compose.yml, or LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS and LEFTFOLD_REDIS_URL",
    )
    parser.addoption(
        "--faults",
        action="store_true",
        help="run only the tests marked `faults`, which kill and wait for a long time, and print a table of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets the watchdog while errors still go where people read them."""
    # A shell that starts this in the background has SIGINT ignored, here and in every child that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from leftfold.local import settings
    from tests.free_ports import own_range

    settings._RANGE = own_range(settings._RANGE)
    config.stash[_WATCHDOG] = Watchdog(seconds=600.0)
    config.stash[_BEGUN], config.stash[_ENDED], config.stash[_SERVED] = monotonic(), {}, False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keeps files whole where several processes test, and folders whose tests share servers."""
    from xdist.scheduler import LoadScopeScheduling

    class WholeFiles(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            path = file.removeprefix("tests/")
            return TOGETHER.get(path) or TOGETHER.get(path.partition("/")[0]) or file

    return WholeFiles(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has Spark and Kafka start quickly where tests start them, and the collector pass over what stays anyway."""
    from tests.class_archive import use_archive_of_kafka, use_archive_of_spark

    if any(item.nodeid.removeprefix("tests/").startswith(SPARK) for item in session.items):
        use_archive_of_spark(session.config.cache.mkdir("spark"))
    if session.config.getoption("--servers") == "embedded" and any(map(_is_served, session.items)):
        use_archive_of_kafka(session.config.cache.mkdir("kafka"))
    # Every test and module that was collected is there until the end; without them a collection takes no time.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the campaign of faults apart from the suite, where either is run; what takes long goes first."""
    campaign = config.getoption("--faults")
    others = [item for item in items if (item.get_closest_marker("faults") is not None) != campaign]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if (item.get_closest_marker("faults") is not None) == campaign]
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    path = item.nodeid.partition("::")[0].removeprefix("tests/")
    return next((rank for rank, long in enumerate(LONG) if path.startswith(long)), len(LONG))


def _is_served(item: pytest.Item) -> bool:
    return item.get_closest_marker("servers") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Notes when a process that tests has nothing more to test."""
    node.config.stash[_ENDED][node.gateway.id] = monotonic() - node.config.stash[_BEGUN]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints when each process ended, and the table of the campaign: how long each test took and how it ended."""
    if ended := sorted(config.stash[_ENDED].items(), key=lambda one: one[1]):
        terminalreporter.write_line("ended after: " + ", ".join(f"{name} {at:.0f} s" for name, at in ended))
    if not config.getoption("--faults"):
        return
    seconds: dict[str, float] = {}
    outcomes: dict[str, str] = {}
    for category in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(category, []):
            outcomes[report.nodeid] = category
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    terminalreporter.section("campaign of faults")
    for name, outcome in sorted(outcomes.items()):
        terminalreporter.write_line(f"{seconds[name]:8.1f} s  {outcome:6}  {name}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends the run at a test that hangs, in whichever of its phases."""
    with item.config.stash[_WATCHDOG].over(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends forgotten clients while their servers run: hundreds of them at once, without, take minutes of some test."""
    stash = item.config.stash
    stash[_SERVED] |= _is_served(item)
    if nextitem is None or nextitem.path != item.path:
        if stash[_SERVED]:
            gc.collect()
        stash[_SERVED] = False
    return (yield)


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Embedded servers of this process, which tests leave as they like; see `emptied`."""
    from leftfold.local import LocalSettings, embedded
    from tests.servers import Addresses

    # A busy machine may stop the only broker for longer than the 3 s after which its controller fences it.
    properties = {"group.min.session.timeout.ms": "500", "broker.session.timeout.ms": "60000"}
    settings = LocalSettings(kafka_properties=properties)
    with embedded(tmp_path_factory.mktemp("servers"), settings=settings) as servers:
        yield Addresses(servers.kafka, servers.redis)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this process: a start takes ten seconds.

    Of a user's own queries it shuffles to 2 partitions, also once others have joined it, who apply their settings to
    it: each of Spark's 200 would be a task, often one of Python.
    """
    from leftfold.local import java_home, spark_jars
    from leftfold.spark import SparkSettings, spark_session

    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("LEFTFOLD_SPARK_PROPERTIES", '{"spark.sql.shuffle.partitions": "2"}')
        with spark_session(SparkSettings(master="local[2]", java_home=java_home(), jars=spark_jars())) as session:
            yield session


@pytest.fixture(scope="module")
def empty_servers(lasting: Addresses) -> Addresses:
    """Embedded servers with nothing in them; the next module has the same ones, emptied again."""
    from tests.servers import emptied

    return emptied(lasting)


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """The addresses of a Kafka and a Redis that answer; the run fails where they cannot be had."""
    from tests.servers import running

    if (kind := request.config.getoption("--servers")) == "embedded":
        yield request.getfixturevalue("empty_servers")
    else:
        with running(kind, tmp_path_factory.mktemp("servers")) as addresses:
            yield addresses


@pytest.fixture(autouse=True)
def _patient_swaps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On servers, two generations may take long to stand at one place: a batch of Spark or a broker may stand still."""
    if _is_served(request.node):
        from tests.waiting import WAIT_SECONDS

        monkeypatch.setattr("leftfold.engine.rebuild.swap._COMPARE_SECONDS", WAIT_SECONDS)
        monkeypatch.setattr("leftfold.engine.rebuild.swap._LEVEL_SECONDS", WAIT_SECONDS)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this process, for a test."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    tzset()
    yield
    monkeypatch.undo()
    tzset()
