"""The comparisons behind `leftfold check`."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from leftfold.app import App
from leftfold.cli.archives import archive_of
from leftfold.cli.console import amount, note
from leftfold.cli.keeping import kept
from leftfold.cli.rebuilding import spark_settings
from leftfold.connection import kafka_settings, ring
from leftfold.engine.hole import hole
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.lockfile import Finding, Lock, compare, lock_of
from leftfold.position import Position
from leftfold.query import TableView
from leftfold.wholelog import open_archive

__all__ = ["compared", "query_findings", "topic_findings", "unbounded"]

_NAMED = 3


def compared(app: App, file: Path, *, write: bool) -> tuple[list[Finding], list[Finding]]:
    """What differs from the lock, and what was accepted: with `write` the lock then says what the code says.

    An event that was released and that nobody reads any more differs even so.

    Raises:
        ConfigurationError: the lock cannot be read or written.
    """
    now = lock_of(app)
    if not file.exists() and not write:
        missing = "is not there yet; write and commit it: leftfold check --write"
        return [Finding("leftfold.lock", missing, wrong=False)], []
    released = Lock.from_json(file.read_text("utf-8")) if file.exists() else Lock()
    found = compare(released, now) if file.exists() else []
    if not write:
        return found, []
    written = now.with_history(released)
    try:
        file.write_text(written.to_json(), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    still = compare(written, now)
    return still, [finding for finding in found if finding not in still]


def query_findings(app: App, kafka: str | None, redis: str | None) -> tuple[list[Finding], list[str]]:
    """What is wrong with the SQL of views, and how each of those views is kept up to date."""
    views = [view for view in app.views if isinstance(view, TableView)]
    if not views:
        return [], []
    found, remarks = [], []
    note("starting Spark, to check the SQL of views")
    with ring("leftfold.spark.session").spark_session(spark_settings("local[1]")) as session:
        for view in views:
            try:
                ring("leftfold.spark.computing").dry_run(session, view)
                how = kept(view, ring("leftfold.spark.computing").refreshed(session, view), kafka, redis)
                about = "; approximate, since late events are left out" if view.approximate else ""
                remarks.append(f"view {view.name} is kept by {how}{about}")
            except ConfigurationError as error:
                about = f"view {view.name}"
                found.append(Finding(about, str(error).removeprefix(f"{about}: ")))
    return found, remarks


def unbounded(app: App) -> str:
    """A warning that names the amounts in events that may be of any size, '' when there are none."""
    events = [cls for decider in app.deciders for cls in decider.events]
    found = [
        f"{cls.__leftfold__.category}.{cls.__leftfold__.name}.{name}"
        for cls in dict.fromkeys([*events, *(cls for view in app.views for cls in view.events)])
        for name, field in cls.model_fields.items()
        if _is_amount(field.annotation) and not any(getattr(told, "max_digits", None) for told in field.metadata)
    ]
    if not found:
        return ""
    more = f" and {amount(len(found) - _NAMED, 'other')}" if len(found) > _NAMED else ""
    return (
        f"a Decimal may have any number of digits in {', '.join(found[:_NAMED])}{more}; SQL passes over events whose "
        f"amounts do not fit. Bound it, in commands too: Annotated[Decimal, Field(max_digits=18, decimal_places=2)]"
    )


def _is_amount(type_: Any) -> bool:
    return type_ is Decimal or (get_origin(type_) in (Union, UnionType) and Decimal in get_args(type_))


def topic_findings(app: App, kafka: str | None, archive: str | None = None) -> tuple[list[Finding], str]:
    """What is wrong with the App's topics or missing among them, and a remark when nobody can be asked."""
    try:
        settings = kafka_settings(kafka)
    except ConfigurationError:
        return [], "topics were not looked at: no Kafka is configured or running here"
    topics = ring("leftfold.kafka.topics")
    wanted = topics.topics_of(app)
    try:
        with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
            there: dict[str, int] = cluster.partition_counts([topic.name for topic in wanted])
            missing = [topic for topic in wanted if topic.name not in there]
            if not missing:
                topics.ensure(app, settings)
            trimmed = list(_trimmed(cluster, [n for n in there if n.endswith(".events")], archive_of(archive)))
    except InfrastructureError as error:
        return [], f"topics were not looked at: {error}"
    except ConfigurationError as error:
        return [Finding("topics", str(error))], ""
    wrong = [t for t in wanted if t.fixed and there.get(t.name, t.partitions) != t.partitions]
    found = [
        Finding(f"topic {t.name}", f"has {there[t.name]} partitions, but app {app.name} says {t.partitions}")
        for t in wrong
    ]
    return found + trimmed, _to_make([f"{t.name} ({t.partitions} partitions)" for t in missing])


def _trimmed(cluster: Any, topics: list[str], archive: str) -> Iterator[Finding]:
    """The topics whose first events are gone, if the archive does not have them: nothing can be folded from 0 then."""
    starts: Position = cluster.starts(topics)
    past = open_archive(archive)
    for topic, partitions in starts.offsets.items():
        ends = past().ends(topic) if past is not None and any(partitions.values()) else {}
        for partition, start in partitions.items():
            if start > (end := ends.get(partition, 0)):
                yield Finding(f"topic {topic}", str(hole(topic, partition, end, start, archive=archive)))
                break


def _to_make(missing: list[str]) -> str:
    return f"leftfold run would make: {', '.join(missing)}" if missing else ""
