"""Archive and topic in SQL: typed tables, one for each event type, for queries and for nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import Field
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from leftfold import Event, FoldView
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ContractError, InfrastructureError
from leftfold.model.app import App
from leftfold.ports.bulk import BulkLog
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.runtime.connect import open_bulk
from leftfold.spark import event_tables, events
from leftfold.spark.core.job import spark_runner
from leftfold.spark.core.task_io import cause_of
from leftfold.spark.sql.allowed import ASKED_FUNCTIONS, ASKED_TABLES
from leftfold.spark.sql.query_results import check_question
from leftfold.spark.tables.frames import EventTables
from tests.archive.past import TOPIC, Past
from tests.archive.topics import MakeTopic, decision
from tests.domains.ledger import Moved, app, by_owner, ledgers
from tests.settled import read_settled
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def tables(past: Past, spark: SparkSession) -> dict[str, Any]:
    found = event_tables(spark, app, past.log)
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    return found


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString()).lower()


def recorded(log: BulkLog) -> list[Any]:
    codec = MessageCodec[Any](ledgers.events)
    return [read_recorded(codec, record) for record in read_settled(log, TOPIC)]


def test_every_event_type_is_a_typed_table(past: Past, spark: SparkSession, tables: dict[str, Any]) -> None:
    assert set(tables) == {"ledgers", "Opened", "Moved", "Closed"}
    assert "kafka" not in plan_of(tables["Moved"]), "which needs no connector: `leftfold log sql` starts Spark without"
    assert dict(tables["Moved"].dtypes) == {
        "ledger": "string", "owner": "string", "amount": "decimal(38,10)", "tags": "array<string>", "_key": "string",
        "_time": "timestamp", "_sequence": "bigint", "_partition": "int", "_offset": "bigint", "_id": "string",
    }  # fmt: skip
    rows = spark.sql("SELECT owner, sum(amount) AS total FROM Moved GROUP BY owner").collect()
    assert {row.owner: row.total for row in rows} == {key: row.total for key, row in past.views[by_owner].items()}
    counted = spark.sql("SELECT _type, count(*) AS count FROM ledgers GROUP BY _type").collect()
    whole = recorded(past.log())
    assert {row._type: row["count"] for row in counted} == Counter(f"{type(r.event).__name__}.v1" for r in whole)
    first = spark.sql("SELECT * FROM Moved ORDER BY _partition, _offset LIMIT 1").collect()[0]
    one = next(r for r in whole if isinstance(r.event, Moved))
    assert (first.amount, tuple(first.tags), first._key) == (one.event.amount, one.event.tags, one.key)
    assert (first._sequence, first._partition, first._offset, first._id) == (
        one.version,
        one.partition,
        one.offset,
        one.id,
    )


def test_the_frame_of_a_category_is_whole_or_refused(past: Past, spark: SparkSession) -> None:
    whole = events(spark, app, "ledgers", past.log)
    assert whole.count() == len(recorded(past.log()))
    with pytest.raises(InfrastructureError, match="gap in the log: .* no archive is configured"):
        events(spark, app, "ledgers", past.topic)
    with pytest.raises(InfrastructureError, match="gap in the log: .* no archive is configured"):
        events(spark, app, "ledgers", past.kafka.java())


def test_twin_reading_the_topic_as_spark_does_misses_the_past(
    past: Past, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leftfold.spark.tables.frames.check_start", lambda *given: app.partitions)
    # A check that came too early does no harm: Spark is asked to begin at 0.
    with pytest.raises(Exception, match="(?i)offset"):
        events(spark, app, "ledgers", past.kafka.java()).count()
    monkeypatch.setattr("leftfold.spark.tables.frames.first_offsets", lambda *given: "earliest")
    found = events(spark, app, "ledgers", past.kafka.java())
    assert 0 < found.count() < len(recorded(past.log()))
    assert "kafka" in plan_of(found)


def test_a_rebuild_on_spark_reads_the_archive_in_its_tasks(past: Past, spark: SparkSession) -> None:
    result = past.rebuild(by_owner, open_bulk(past.kafka, past.folder), spark_runner(spark)).run()
    assert result.agreement is Agreement.EQUAL, str(result)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "TABLE Moved",
        "VALUES (1, 2)",
        "WITH a AS (SELECT 1) SELECT * FROM a ORDER BY 1 LIMIT 3",
        "SELECT owner FROM Moved GROUP BY 1 HAVING count(*) > 1 UNION SELECT owner FROM Opened",
        "FROM Moved |> WHERE amount > 0 |> SELECT owner",
        "SELECT owner, row_number() OVER w FROM Moved WINDOW w AS (PARTITION BY owner ORDER BY _offset)",
        "SELECT * FROM Moved LIMIT 3 OFFSET 1",
        "SELECT * EXCEPT (tags) FROM Moved TABLESAMPLE (50 PERCENT)",
        "SELECT owner, collect_list(amount), first(_time), max_by(ledger, amount) FROM Moved GROUP BY owner",
        "SELECT current_timestamp(), current_date, now() > max(_time), rand() FROM Moved",
        "SELECT count(*) FROM Moved WHERE _time < 'tomorrow'",
        "SELECT a.owner, n.id FROM (SELECT DISTINCT owner FROM Moved) a CROSS JOIN range(3) n",
        "SELECT m.owner, t.tag FROM Moved m, LATERAL explode(m.tags) AS t(tag)",
        "SELECT explode(sequence(1, 3)), rpad('x', 3, 'y')",
        "SELECT first(owner) IGNORE NULLS, last(owner), any_value(owner) FROM Moved",
        "SELECT owner, ledger, sum(amount) FROM Moved GROUP BY ROLLUP (owner, ledger) ORDER BY 1, 2 LIMIT ALL",
        "SELECT owner FROM Moved WHERE owner LIKE ALL ('o%', '%1') QUALIFY row_number() OVER (ORDER BY _offset) = 1",
        "SELECT /*+ BROADCAST(o) */ m.owner FROM Moved m JOIN Opened o ON m.owner = o.owner",
        "SELECT * FROM (SELECT owner, amount FROM Moved) PIVOT (sum(amount) FOR owner IN ('o/1', 'o/2'))",
        "SELECT * FROM (SELECT 1 AS a, 2 AS b) UNPIVOT (n FOR name IN (a, b))",
        "FROM Moved |> AGGREGATE sum(amount) AS total GROUP BY owner |> ORDER BY total |> LIMIT 2",
    ],
)
def test_questions_are_answered(spark: SparkSession, tables: dict[str, Any], query: str) -> None:
    check_question(spark, query, tables)
    assert spark.sql(query).columns, "Spark finds everything that it names"


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("SELECT * FROM text.`/etc/hostname`", "text./etc/hostname"),
        ("SELECT TRANSFORM(owner) USING 'cat /etc/passwd' FROM Moved", "TRANSFORM"),
        ("DROP TABLE Moved", "DROP TABLE"),
        ("SELECT (SELECT java_method('java.lang.System', 'getProperty', 'user.home'))", "java_method"),
        ("WITH a AS (SELECT reflect('java.util.UUID', 'randomUUID')) SELECT * FROM a", "reflect"),
        ("FROM Moved |> SELECT reflect('java.util.UUID', 'randomUUID')", "reflect"),
        ("SELECT secret('scope', 'key')", "secret"),
        ("SELECT 1; DROP TABLE Moved", "DROP"),
        ("selec 1", "selec"),
        ("", "only questions"),
    ],
    ids=lambda text: text[:60],
)
def test_statements_that_are_no_questions_are_refused(
    spark: SparkSession, tables: dict[str, Any], statement: str, word: str
) -> None:
    with pytest.raises(ContractError, match="^only questions are answered here: ") as refused:
        check_question(spark, statement, tables)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_function_of_a_question_is_one_of_spark(spark: SparkSession) -> None:
    known = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert not sorted((ASKED_FUNCTIONS | ASKED_TABLES) - known)


class Happened(Event, category="things", key="thing"):
    thing: str
    amount: Decimal = Decimal(0)
    number: int = 0
    at: datetime | None = None
    exact: Annotated[Decimal, Field(max_digits=60, decimal_places=30)] = Decimal(0)


@pytest.fixture
def things(
    past: Past, spark: SparkSession, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., EventTables]:
    """The tables of a topic of these values."""

    def tables(*values: bytes) -> EventTables:
        topic = make_topic(1)
        topic.write(*(decision(value) for value in values))
        # A commit is answered before its marker is written, so the end may be stable a moment later.
        wait_until(lambda: stable_end(past, topic.name) > 0, f"{topic.name} to be stable")
        monkeypatch.setattr("leftfold.model.keys.events", lambda category: topic.name)
        view = FoldView("things", events=Happened, row=Happened, evolve=lambda row, event: event)
        return event_tables(spark, App("things", views=[view]), past.topic)

    return tables


def stable_end(past: Past, topic: str) -> int:
    with closing(past.topic()) as log:
        return log.stable_ends([topic]).next_offset(topic, 0)


def test_amounts_are_exact(things: Callable[..., EventTables]) -> None:
    exact = "123456789012345678901234567890.123456789012345678901234567890"
    (row,) = things(b'{"thing": "k", "amount": "1.5000000001", "exact": "%b"}' % exact.encode())["Happened"].collect()
    assert (row.amount, row.exact) == (Decimal("1.5000000001"), exact)


UNFIT = [
    ("amount", '"0.12345678901"'),
    ("amount", '"1E+400000"'),
    ("amount", '"1E-400000"'),
    ("amount", "9" * 29),
    ("number", "9" * 19),
    ("number", "-" + "9" * 4000),
    ("at", '"0001-01-01T00:00:00+05:00"'),
    ("at", '"9999-12-31T23:00:00-05:00"'),
]


def test_events_whose_values_do_not_fit_are_passed_over_and_named(things: Callable[..., EventTables]) -> None:
    tables = things(
        b'{"thing": "first"}',
        *(f'{{"thing": "k", "{field}": {value}}}'.encode() for field, value in UNFIT),
        b'{"thing": "last \\u0000", "amount": "1.5", "at": "9999-12-31T23:59:59Z"}',
    )
    places = {offset: field for offset, (field, _) in enumerate(UNFIT, 1)}
    for name in ("Happened", "things"):
        assert [row.thing for row in tables[name].select("thing").collect()] == ["first", "last \0"]
        found = {int(place.partition("@")[2]): field for place, field in tables.misfits.found.items()}
        assert found == places, "an event that is read again counts once"
    assert re.match(r"8 events passed over, .*: \S+\[0\]@1 \(amount\), .* and 3 more$", str(tables.misfits))


def test_without_such_events_no_misfit_is_reported(things: Callable[..., EventTables]) -> None:
    tables = things(b'{"thing": "k"}')
    assert tables["Happened"].count() == 1
    assert str(tables.misfits) == ""


def test_in_tests_and_frames_a_value_that_does_not_fit_is_refused(
    things: Callable[..., EventTables], past: Past, spark: SparkSession
) -> None:
    things(b'{"thing": "k", "amount": "0.12345678901"}')
    view = FoldView("things", events=Happened, row=Happened, evolve=lambda row, event: event)
    with pytest.raises(PythonException) as caught:
        events(spark, App("things", views=[view]), "things", past.topic).collect()
    cause = cause_of(caught.value)
    assert isinstance(cause, ContractError)
    assert re.search(r"\[0\]@0: amount = Decimal\('0\.12345678901'\) does not fit its column", str(cause))
