"""`leftfold doctor`: checks, one by one, what can keep a service from working on this machine."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import typer

from leftfold.cli.options import AppsOption, JsonOption, KafkaOption, RedisOption, examples, note_options
from leftfold.engine.views.cleanup import orphans
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import dead_commands, topics_of
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import RecordAddress
from leftfold.redis import RedisViewStore, refuse_eviction
from leftfold.runtime.connect import extras, is_installed, kafka_settings, redis_settings
from leftfold.runtime.console import amount, emit, say_lines, styled
from leftfold.runtime.operations.survey import Survey, look_for_others
from leftfold.runtime.operations.topics import known_settings
from leftfold.runtime.project import archive_of, find_project, load_apps, local_settings, servers_to_start
from leftfold.runtime.servers import store_of
from leftfold.safety import veiled
from leftfold.version import install_command

__all__ = ["Examination", "Finding", "look_for_open"]


EXAMPLES = examples(
    "leftfold doctor", "leftfold doctor --app services.payments.app:app     another App than the project's"
)

_ABOUT = len("transactions")


def doctor(
    app: AppsOption = None, kafka: KafkaOption = None, redis: RedisOption = None, as_json: JsonOption = False
) -> None:
    """Check for what keeps services from working.

    Python and what is installed, Java, Redis, disk, the project and its Apps, the servers, workers, processes that are
    behind, transactions that stay open, generations of views that are left over or in no registry. Nothing is started
    or changed. Exit code 1 when something is wrong.
    """
    wrong, messages = False, list[str]()
    for finding in Examination(app or [], kafka, redis).run():
        wrong = wrong or not finding.well
        messages.append(finding.message)
        if as_json:
            emit({"about": finding.about, "well": finding.well, "message": finding.message})
        else:
            verdict = styled("ok   ", fg="green") if finding.well else styled("wrong", fg="red")
            first, *others = finding.message.split("\n")
            indent = " " * (len("wrong ") + _ABOUT + 1)
            say_lines([(verdict, f" {finding.about:<{_ABOUT}} {first}"), *(indent + other for other in others)])
    note_options("\n".join(messages), app or (), kafka, redis)
    if wrong:
        raise typer.Exit(1)


_LONGEST, _PAUSE, _NAMED = 25.0, 0.5, 5
"""Seconds after which every transaction should have ended: it times out after 10, and brokers look every 10."""


def look_for_open(app: App, settings: Any, seconds: float = _LONGEST) -> str:
    """Searches the topics that an App owns for transactions that stay open; returns at once when none is open.

    Raises:
        InfrastructureError: a transaction was open for all of `seconds`.
    """
    with ClusterAdmin(settings) as cluster:
        there = cluster.topics()
        topics = [topic.name for topic in topics_of(app) if topic.name in there]
        found = _stuck(cluster, settings, topics, seconds)
    if not found:
        return f"none stays open in {amount(len(topics), 'topic')}"
    first, more = found[0], len(found) - _NAMED
    places = ", ".join(map(str, found[:_NAMED])) + (f" and {more} more" if more > 0 else "")
    raise InfrastructureError(
        f"a transaction has been open for {seconds:g} s at {places}, and no reader gets what is behind it. Workers end "
        f"those on their own states when they start again: leftfold run. Else Kafka's own tool aborts it, even what "
        f"was decided to be committed: {_tool('kafka-transactions', settings)} abort --topic {first.topic} "
        f"--partition {first.partition} --start-offset {first.offset}"
    )


def _tool(name: str, settings: KafkaSettings) -> str:
    """The beginning of a command line of one of Kafka's own tools, for the brokers of the settings."""
    login = "" if settings.security_protocol == "PLAINTEXT" else " --command-config FILE"
    return f"{name} --bootstrap-server {settings.bootstrap_servers}{login}"


def _stuck(cluster: Any, settings: Any, topics: Iterable[str], seconds: float) -> list[RecordAddress]:
    """Addresses open for all of `seconds`: a running worker opens and ends one transaction after another."""
    wanted = list(topics)
    with closing(KafkaBulkLog(settings)) as log:
        found = _open(cluster, log, wanted)
        deadline = time.monotonic() + seconds
        while found and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            found &= _open(cluster, log, {place.topic for place in found})
    return sorted(found)


def _open(cluster: Any, log: Any, topics: Iterable[str]) -> set[RecordAddress]:
    """Addresses of the last stable offsets that are below the end.

    The stable ends are read first, so they can only be too low.
    """
    stable = log.stable_ends(topics).offsets
    ends = cluster.ends(topics).offsets
    return {
        RecordAddress(topic, partition, offset)
        for topic, offsets in stable.items()
        for partition, offset in offsets.items()
        if offset < ends[topic][partition]
    }


Row: TypeAlias = dict[str, Any]
_MORE = {
    "spark": ("pyspark", "rebuilds run in one process, query views cannot be computed"),
    "archive": ("pyarrow", "leftfold log cannot archive"),
}
"""Optional extras: a module of each, and what is not possible without it."""
_LEAST_FREE = 2 * 1024**3
_LONGEST_LOOK = 10.0
"""Seconds for scans over the keys in Redis."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    about: str
    message: str
    well: bool


class Examination:
    """The checks of `leftfold doctor`; each runs whatever the others found."""

    def __init__(self, apps: Sequence[str], kafka: str | None, redis: str | None) -> None:
        self._specs, self._kafka, self._redis = apps, kafka, redis
        self._surveys: dict[str, tuple[list[Row], Survey]] = {}

    def run(self) -> Iterator[Finding]:
        """One finding per check."""
        embedded = servers_to_start(self._kafka, self._redis, quiet=True)
        looks: dict[str, Callable[[], str]] = {
            "python": _python,
            "packages": partial(_packages, embedded),
            "java": partial(_java, embedded),
            "disk": partial(_disk, embedded),
            "app": self._look_at_apps,
            "kafka": self._look_at_kafka,
            "workers": partial(self._each, self._look_at_workers),
            "processes": partial(self._each, partial(self._at_work, "process")),
            "reactions": partial(self._each, partial(self._at_work, "reaction")),
            "streams": partial(self._each, partial(self._at_work, "stream")),
            "transactions": partial(self._each, self._look_for_open_transactions),
            "redis": self._look_at_redis,
            "views": self._look_at_views,
            "orphans": self._look_for_orphans,
        }
        for about, look in looks.items():
            try:
                with extras():
                    found = look()
                yield Finding(about, found, well=True)
            except LeftfoldError as error:
                yield Finding(about, veiled(str(error)), well=False)

    def _each(self, look: Callable[[App], str]) -> str:
        """Results of one check for each App."""
        well, wrong = list[str](), list[str]()
        for app in load_apps(self._specs).values():
            try:
                well.append(look(app))
            except LeftfoldError as error:
                wrong.append(str(error))
        if wrong:
            raise InfrastructureError("\n".join(dict.fromkeys(wrong)))
        return ", ".join(filter(None, well)) or "there are none"

    def _look_at_apps(self) -> str:
        apps = load_apps(self._specs).values()
        return f"{'; '.join(map(_contents, apps))}, in {find_project().root}"

    def _look_at_kafka(self) -> str:
        settings = kafka_settings(self._kafka)
        with ClusterAdmin(settings) as cluster:
            began = time.perf_counter()
            brokers = cluster.brokers()
            took = (time.perf_counter() - began) * 1000
        return f"{settings.bootstrap_servers}: {amount(brokers, 'broker')}, answered in {took:.0f} ms"

    def _look_at_workers(self, app: App) -> str:
        wrong = ""
        try:
            found = self._members("decider", app.deciders, app)
        except LeftfoldError as error:
            wrong = str(error)
        settings = kafka_settings(self._kafka)
        tool = _tool("kafka-configs", settings)
        with ClusterAdmin(settings) as admin:
            noted = [look(admin, app, tool) for look in (_packed, _kept_otherwise)]
        noted = [one for one in noted if one.strip() not in wrong]
        if wrong:
            raise InfrastructureError(wrong + "".join(noted))
        return ", ".join(f"{row['name']} has {amount(row['workers'], 'worker')}" for row in found) + "".join(noted)

    def _examined(self, kind: str, members: Sequence[Any], app: App) -> tuple[list[Row], list[str], list[str]]:
        """The rows of `leftfold status` about members of a kind, what is wrong with them, and remarks.

        All checks share one survey. Members without a row were not reached, since a server did not answer.
        """
        if app.name not in self._surveys:
            survey = Survey(self._kafka, self._redis, archive_of(None))
            self._surveys[app.name] = list(survey.members(app)), survey
        rows, survey = self._surveys[app.name]
        found = [row for row in rows if row["kind"] == kind]
        wrong = [problem for row in found for problem in row["problems"]]
        if len(found) < len(members):
            named = {problem for row in rows for problem in (*row["problems"], *row["remarks"])}
            wrong += [problem for problem in survey.problems if problem not in named]
        return found, wrong, [remark for row in found for remark in row["remarks"]]

    def _members(self, kind: str, members: Sequence[Any], app: App) -> list[Row]:
        """The rows of members of a kind.

        Raises:
            InfrastructureError: something is wrong with them.
        """
        found, wrong, _ = self._examined(kind, members, app)
        if wrong:
            raise InfrastructureError("\n".join(wrong))
        return found

    def _at_work(self, kind: str, app: App) -> str:
        members = {"process": app.processes, "reaction": app.reactions, "stream": app.streams}[kind]
        return ", ".join(
            f"{row['name']} is up to date, with {_timers(row['timers'])}"
            if "timers" in row
            else f"{row['name']} is at work, lag {'unknown' if row['lag'] is None else format(row['lag'], ',')}"
            for row in self._members(kind, members, app)
        )

    def _look_for_open_transactions(self, app: App) -> str:
        return look_for_open(app, kafka_settings(self._kafka))

    def _look_at_redis(self) -> str:
        settings = redis_settings(self._redis)
        policy = refuse_eviction(settings) or "not known"
        with closing(RedisViewStore(settings)) as store:
            servers = store.servers()
            began = time.perf_counter()
            store.registry("leftfold doctor")
            took = (time.perf_counter() - began) * 1000
        return f"{servers}: answered in {took:.0f} ms, maxmemory-policy {policy}"

    def _look_at_views(self) -> str:
        """Counts views and generations; names views that are late or not built, and what is parked.

        Generations of other code are no fault: a rollout can return to them.
        """
        apps, wrong, remarks = load_apps(self._specs), list[str](), list[str]()
        views = [view for app in apps.values() for view in app.views]
        with store_of(self._redis) as store:
            count = sum(len(store.registry(view.name).generations) for view in views)
            others = look_for_others(store, apps, _LONGEST_LOOK)
        for app in apps.values():
            _, faults, left = self._examined("view", app.views, app)
            wrong, remarks = wrong + faults, remarks + left
        if wrong:
            raise InfrastructureError("\n".join(dict.fromkeys([*wrong, *remarks, *others])))
        return "; ".join([f"{amount(len(views), 'view')}, {amount(count, 'generation')}", *remarks, *others])

    def _look_for_orphans(self) -> str:
        apps = load_apps(self._specs)
        views = [view.name for app in apps.values() for view in app.views]
        with store_of(self._redis) as store:
            there = orphans(store, views, _LONGEST_LOOK)
        if there.found:
            lost = ", ".join(f"{orphan.view} {orphan.id}" for orphan in there.found)
            remove = "; ".join(
                f"leftfold drop {view} --orphans --yes" for view in dict.fromkeys(orphan.view for orphan in there.found)
            )
            raise InfrastructureError(f"keys of generations that no registry lists ({lost}); remove them: {remove}")
        if there.whole:
            return "every generation that has keys is in a registry"
        return (
            f"none in the keys of the first {_LONGEST_LOOK:g} s, and there are more; all of them, view by view: "
            f"leftfold drop VIEW --orphans"
        )


def _packed(cluster: Any, app: App, tool: str) -> str:
    """A remark on topics written by clients that accept batches whose uncompressed size no broker checks."""
    parts = [*(decider.name for decider in app.deciders), *(process.name for process in app.processes)]
    wanted = [names.replies(app.name), *map(names.commands, parts)]
    configs, warning = known_settings(cluster, cluster.partition_counts(wanted))
    found = [topic for topic, config in configs.items() if config.get("compression.type") == "producer"]
    if not found:
        return f"\n{warning}" if warning else ""
    return (
        f"\n{', '.join(found)} take batches that weigh little only while they are packed; to have brokers refuse them: "
        f"{tool} --alter --entity-type topics --entity-name TOPIC --add-config compression.type=uncompressed"
    )


def _kept_otherwise(cluster: Any, app: App, tool: str) -> str:
    """A remark on dead-letter topics whose retention differs from the App's `dead_retention`."""
    wanted = dead_commands(app.dead_retention)["retention.ms"]
    dead = cluster.partition_counts(names.dead(decider.name) for decider in app.deciders)
    configs, warning = known_settings(cluster, dead)
    found = {topic: config["retention.ms"] for topic, config in configs.items() if config["retention.ms"] != wanted}
    if not found:
        return f"\n{warning}" if warning else ""
    return (
        f"\n{', '.join(f'{topic} has retention.ms={ms}' for topic, ms in found.items())}, and dead_retention of app "
        f"{app.name} says {wanted}; where older dead letters may go: {tool} --alter --entity-type topics "
        f"--entity-name TOPIC --add-config retention.ms={wanted}"
    )


def _timers(count: int | None) -> str:
    return "an unknown number of timers" if count is None else amount(count, "timer")


def _contents(app: App) -> str:
    deciders, views = amount(len(app.deciders), "decider"), amount(len(app.views), "view")
    processes = f" {amount(len(app.processes), 'process')}," if app.processes else ""
    return f"{app.name}: {deciders},{processes} {views}, partitions={app.partitions}"


def _python() -> str:
    return f"{platform.python_version()} at {sys.executable}"


def _java(embedded: Collection[str]) -> str:
    if not embedded and find_spec("pyspark") is None:
        return "nothing here needs it"
    from leftfold.local import java_home

    return str(java_home())


def _packages(embedded: Collection[str]) -> str:
    """The installed extras, or an error that names every missing one; optional extras are only mentioned."""
    needed = ["kafka", "redis", *(["embedded"] if embedded else [])]
    wanted = ",".join(extra for extra in needed if not is_installed(extra))
    if wanted:
        raise ConfigurationError(f"not installed: {wanted}; install it: {install_command(wanted)}")
    without = [f"{extra} ({what})" for extra, (module, what) in _MORE.items() if find_spec(module) is None]
    return f"leftfold[{','.join(needed)}]" + (f", without {' and '.join(without)}" if without else "")


def _disk(embedded: Collection[str]) -> str:
    data = local_settings().data.resolve()
    if not embedded:
        return "servers are configured elsewhere"
    place: Path = next(p for p in (data, *data.parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < _LEAST_FREE:
        raise ConfigurationError(
            f"{free / 1024**3:.1f} GB are free in {place}, and Kafka stops when a disk is full; make room, "
            f"or set LEFTFOLD_DATA to another disk"
        )
    return f"{free / 1024**3:.0f} GB are free for {data}"
