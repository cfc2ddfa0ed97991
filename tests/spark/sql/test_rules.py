"""SQL is judged before Spark runs any of it: whether it may run, and whether a stream may keep it."""

from __future__ import annotations

import ast
import socket
from functools import cache
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError
from leftfold.spark.sql.allowed import PlanNode
from leftfold.spark.sql.incremental import Refreshed, classify
from leftfold.spark.sql.parser import parse
from leftfold.spark.sql.rules import QUESTION, VIEW, CheckedQuery, Rules, check
from tests.spark.sql.hostile_sql import HARMFUL, HOSTILE

TABLES = ["Moved", "Opened", "Closed", "owners"]
HONEST = [
    "SELECT owner, sum(amount) AS total FROM Moved GROUP BY owner",
    "SELECT owner, date(_time) AS day, count(*) AS n FROM Moved GROUP BY 1, 2;",
    "select OWNER, sum(AMOUNT) total from MOVED group by OWNER having sum(amount) > 0 order by total desc limit 10",
    "SELECT m.owner, o.region, CAST(sum(m.amount) AS DECIMAL(18, 2)) AS t FROM Moved m JOIN owners o USING (owner) "
    "GROUP BY 1, 2",
    "SELECT m.owner FROM Moved m LEFT JOIN Opened o ON m._key = o._key WHERE o._key IS NULL",
    "WITH big AS (SELECT * FROM Moved WHERE amount > 10), few AS (SELECT owner FROM big) SELECT count(1) AS n FROM few",
    "SELECT tag, count(*) AS n FROM (SELECT explode(tags) AS tag FROM Moved) GROUP BY tag",
    "SELECT t.tag, count(*) AS n FROM Moved LATERAL VIEW OUTER explode(tags) t AS tag GROUP BY t.tag",
    "SELECT owner, sum(amount) FILTER (WHERE amount > 0) AS gains FROM Moved GROUP BY owner",
    "SELECT owner, amount, row_number() OVER (PARTITION BY owner ORDER BY _partition, _offset) AS nth FROM Moved",
    "SELECT owner, rank() OVER w AS place FROM Moved WINDOW w AS (PARTITION BY owner ORDER BY amount)",
    "SELECT owner FROM Moved UNION SELECT owner FROM Opened EXCEPT SELECT owner FROM Closed",
    "SELECT owner FROM Opened WHERE owner NOT IN (SELECT owner FROM Closed)",
    "SELECT o.owner FROM Opened o WHERE EXISTS (SELECT 1 FROM Closed c WHERE c._key = o._key)",
    "SELECT owner, (SELECT max(amount) FROM Moved) AS most FROM Opened",
    "SELECT window(_time, '1 day').start AS day, count(*) AS n FROM Moved GROUP BY window(_time, '1 day')",
    "SELECT CASE WHEN amount BETWEEN -1 AND 1 THEN 'small' WHEN owner LIKE 'o/%' THEN 'ours' ELSE 'big' END AS kind, "
    "count(DISTINCT owner) AS n FROM Moved GROUP BY ALL",
    "SELECT upper(trim(owner)) || '-' || substring(owner, 1, 2) AS o, round(abs(amount) * 2 - 1, 1) AS a, amount % 2, "
    "coalesce(amount, 0), nullif(owner, ''), if(amount > 0, 1, -1), extract(YEAR FROM _time), hour(_time), "
    "size(tags), tags[0], element_at(tags, 1), transform(tags, t -> lower(t)), array_contains(tags, 'x'), "
    "aggregate(tags, 0, (n, t) -> n + length(t)), named_struct('a', owner).a, DATE '2020-01-01', INTERVAL 1 DAY, true, "
    "NULL, 1.50, TRY_CAST(owner AS INT), owner RLIKE '^o', regexp_extract(owner, '(.)', 1), md5(owner) FROM Moved",
    "SELECT `Moved`.`user` AS u FROM Moved",
    "TABLE Moved",
]


@cache
def parsed(spark: SparkSession, query: str) -> PlanNode:
    return parse(spark, query, "view v")


def checked(spark: SparkSession, query: str) -> CheckedQuery:
    return check(parsed(spark, query), TABLES, "view v")


@pytest.mark.parametrize(
    ("query", "word", "rules"),
    [*((*one, VIEW) for one in HOSTILE), *((*one, QUESTION) for one in HARMFUL)],
    ids=lambda value: value.what if isinstance(value, Rules) else value[:60],
)
def test_a_hostile_statement_is_refused_by_name(spark: SparkSession, query: str, word: str, rules: Rules) -> None:
    with pytest.raises(ConfigurationError, match="^view v: ") as refused:
        check(parsed(spark, query), TABLES, "view v", rules)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_there_are_many_hostile_statements() -> None:
    assert len({query for query, _ in HOSTILE}) == len(HOSTILE) >= 100


def test_a_statement_of_too_many_parts_is_refused_before_all_are_read(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="view v: the query has more than 100 parts, which are too many"):
        parse(spark, "SELECT amount" + ", amount" * 99 + " FROM Moved", "view v", most=100)
    assert parse(spark, "SELECT amount FROM Moved", "view v", most=100).kind == "Project"


@pytest.mark.parametrize("query", HONEST, ids=lambda text: text[:60])
def test_an_honest_statement_is_accepted(spark: SparkSession, query: str) -> None:
    assert set(checked(spark, query).tables) <= set(TABLES)


def test_the_check_tells_which_tables_and_columns_are_read(spark: SparkSession) -> None:
    found = checked(spark, "SELECT m.owner AS o, sum(Amount) FROM moved m WHERE _time > DATE '2020-01-01' GROUP BY 1")
    assert (found.tables, found.columns) == (("Moved",), frozenset({"m", "owner", "amount", "_time"}))
    assert checked(spark, "SELECT * FROM Moved").columns is None
    assert checked(spark, "SELECT owner FROM Moved JOIN owners USING (region)").columns is None


def test_without_the_check_a_statement_reads_files_and_runs_code(spark: SparkSession, tmp_path: Path) -> None:
    """The twin: what is refused above really works in a plain session, files where a setting allows them."""
    session = spark.newSession()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND|UNSUPPORTED_DATASOURCE"):
        session.sql("SELECT * FROM text.`/etc/hostname`").collect()
    session.conf.set("spark.sql.runSQLOnFiles", "true")
    secret = tmp_path / "secret.txt"
    secret.write_text("the word is friend")
    (row,) = session.sql(f"SELECT value FROM text.`{secret}`").collect()  # noqa: S608  # the twin
    assert row.value == secret.read_text()
    (pid,) = session.sql("SELECT reflect('java.lang.System', 'getProperty', 'user.dir') AS d").collect()
    assert Path(pid.d).is_dir()
    (host,) = session.sql("SELECT java_method('java.net.InetAddress', 'getLocalHost') AS h").collect()
    assert socket.gethostname() in host.h


def test_what_judges_sql_knows_no_spark() -> None:
    """Only the parser does; the rules are pure, so that a test can state them."""
    for name in ("allowed", "incremental", "rules"):
        file = Path(__file__).parents[3] / "framework" / "leftfold" / "spark" / "sql" / f"{name}.py"
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        assert not [
            n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith(("pyspark", "py4j"))
        ]


EVENTS, FILES = ["Moved", "Opened"], ["owners"]
COLUMNS = ["owner", "ledger", "amount", "tags", "region", "_time", "_key"]


def kept(spark: SparkSession, query: str) -> Refreshed:
    return classify(check(parse(spark, query, "v"), [*EVENTS, *FILES], "v"), EVENTS, COLUMNS)


@pytest.mark.parametrize(
    ("query", "groups"),
    [
        ("SELECT owner, sum(amount) AS t FROM Moved GROUP BY owner", ("owner",)),
        ("SELECT owner AS who, count(*) AS n FROM Moved GROUP BY 1", ("who",)),
        ("SELECT owner AS who, count(*) AS n FROM Moved GROUP BY owner", ("who",)),
        ("SELECT date(_time) AS day, owner, min(amount) AS l FROM Moved GROUP BY date(_time), owner", ("day", "owner")),
        ("SELECT date(_time) AS day, count(*) AS n FROM Moved GROUP BY day", ("day",)),
        ("SELECT m.owner, avg(amount) AS a FROM Moved m WHERE amount > 0 GROUP BY m.owner", ("owner",)),
        ("SELECT tag, count(*) AS n FROM (SELECT explode(tags) AS tag FROM Moved) GROUP BY tag", ("tag",)),
        ("SELECT t.tag, count(*) AS n FROM Moved LATERAL VIEW explode(tags) t AS tag GROUP BY t.tag", ("tag",)),
        ("SELECT region, sum(amount) AS t FROM Moved JOIN owners USING (owner) GROUP BY region", ("region",)),
        ("SELECT region, sum(amount) AS t FROM Moved m LEFT JOIN owners USING (owner) GROUP BY 1", ("region",)),
        ("SELECT region, sum(amount) AS t FROM owners o RIGHT JOIN Moved m USING (owner) GROUP BY 1", ("region",)),
        ("SELECT window(_time, '1 day').start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 day')", ("s",)),
        ("SELECT window.start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 day')", ("s",)),
        ("SELECT owner, WINDOW.end AS e, count(*) AS n FROM Moved GROUP BY owner, window(_time, '1 h')",
         ("owner", "e")),
        ("SELECT owner, sum(amount) FILTER (WHERE amount > 0) AS g FROM Moved GROUP BY owner", ("owner",)),
    ],
)  # fmt: skip
def test_one_group_by_over_one_table_of_events_is_incremental(
    spark: SparkSession, query: str, groups: tuple[str, ...]
) -> None:
    found = kept(spark, query)
    assert (found.incremental, found.groups) == (True, groups), found.why


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT owner, amount FROM Moved", "it has no GROUP BY"),
        ("SELECT sum(amount) AS t FROM Moved", "it has no GROUP BY"),
        ("SELECT owner, sum(amount) AS t FROM Moved GROUP BY owner HAVING sum(amount) > 0", "it has HAVING"),
        ("SELECT owner, count(*) AS n FROM Moved GROUP BY owner ORDER BY n", "it has ORDER BY"),
        ("SELECT owner, count(*) AS n FROM Moved GROUP BY owner ORDER BY n LIMIT 3", "it has LIMIT"),
        ("SELECT DISTINCT owner FROM Moved", "it has DISTINCT"),
        ("SELECT owner, count(DISTINCT ledger) AS n FROM Moved GROUP BY owner", r"it has count\(DISTINCT"),
        ("SELECT owner, median(amount) AS m FROM Moved GROUP BY owner", "median is not the same"),
        ("SELECT n, count(*) AS o FROM (SELECT owner, count(*) AS n FROM Moved GROUP BY owner) GROUP BY n",
         "it has a second GROUP BY"),
        ("SELECT n, count(*) AS o FROM (SELECT count(*) AS n FROM Moved) GROUP BY n", "count below its GROUP BY"),
        ("WITH m AS (SELECT * FROM Moved) SELECT owner, count(*) AS n FROM m GROUP BY owner", "it has WITH"),
        ("SELECT owner, count(*) AS n FROM Moved WHERE owner IN (SELECT owner FROM owners) GROUP BY owner",
         "it has a subquery"),
        ("SELECT owner, count(*) AS n FROM (SELECT owner FROM Moved UNION ALL SELECT owner FROM Opened) GROUP BY owner",
         "it has UNION"),
        ("SELECT owner, count(*) AS n FROM Moved JOIN Opened USING (owner) GROUP BY owner", "reads 2 tables of events"),
        ("SELECT owner, count(*) AS n FROM owners GROUP BY owner", "reads 0 tables of events"),
        ("SELECT region, count(*) AS n FROM owners o LEFT JOIN Moved m ON o.owner = m.owner GROUP BY 1",
         "LeftOuter join, whose rows can go again"),
        ("SELECT region, count(*) AS n FROM owners o FULL JOIN Moved m ON o.owner = m.owner GROUP BY 1",
         "FullOuter join"),
        ("SELECT m.owner, count(*) AS n FROM Moved m LEFT ANTI JOIN owners o ON o.owner = m.owner GROUP BY 1",
         "LeftAnti join"),
        ("SELECT owner, sum(count(*)) OVER (ORDER BY owner) AS n FROM Moved GROUP BY owner", "it has OVER"),
        ("SELECT window(_time, '1 day').start AS s, count(*) AS n FROM Moved GROUP BY window(_time, '1 hour')",
         "its rows do not show window"),
        ("SELECT count(*) AS n FROM Moved GROUP BY owner", "its rows do not show owner"),
        ("SELECT upper(owner) AS owner, count(*) AS n FROM Moved GROUP BY owner", "its rows do not show owner"),
    ],
)  # fmt: skip
def test_anything_else_is_computed_again(spark: SparkSession, query: str, why: str) -> None:
    found = kept(spark, query)
    assert not found.incremental
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(str(found))
