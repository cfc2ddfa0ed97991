"""SQL is judged before Spark runs any of it."""

from __future__ import annotations

import ast
import socket
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leftfold.errors import ConfigurationError
from leftfold.spark.sql.parser import parse
from leftfold.spark.sql.rules import CheckedQuery, check
from tests.spark.hostile_sql import HOSTILE

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


def checked(spark: SparkSession, query: str) -> CheckedQuery:
    return check(parse(spark, query, "view v"), TABLES, "view v")


@pytest.mark.parametrize(("query", "word"), HOSTILE, ids=lambda text: text[:60])
def test_a_hostile_statement_is_refused_by_name(spark: SparkSession, query: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match="^view v: ") as refused:
        checked(spark, query)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_there_are_many_hostile_statements() -> None:
    assert len({query for query, _ in HOSTILE}) == len(HOSTILE) >= 100


@pytest.mark.parametrize("query", HONEST, ids=lambda text: text[:60])
def test_an_honest_statement_is_accepted(spark: SparkSession, query: str) -> None:
    assert set(checked(spark, query).tables) <= set(TABLES)


def test_the_check_tells_which_tables_and_columns_are_read(spark: SparkSession) -> None:
    found = checked(spark, "SELECT m.owner AS o, sum(Amount) FROM moved m WHERE _time > DATE '2020-01-01' GROUP BY 1")
    assert (found.tables, found.columns) == (("Moved",), frozenset({"m", "owner", "amount", "_time"}))
    assert checked(spark, "SELECT * FROM Moved").columns is None
    assert checked(spark, "SELECT owner FROM Moved JOIN owners USING (region)").columns is None


def test_without_the_check_a_statement_reads_files_and_runs_code(spark: SparkSession, tmp_path: Path) -> None:
    """The twin: what is refused above really works in a plain session."""
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "true")
    secret = tmp_path / "secret.txt"
    secret.write_text("the word is friend")
    (row,) = session.sql(f"SELECT value FROM text.`{secret}`").collect()  # noqa: S608  # the twin
    assert row.value == secret.read_text()
    (pid,) = session.sql("SELECT reflect('java.lang.System', 'getProperty', 'user.dir') AS d").collect()
    assert Path(pid.d).is_dir()
    (host,) = session.sql("SELECT java_method('java.net.InetAddress', 'getLocalHost') AS h").collect()
    assert socket.gethostname() in host.h


def test_every_allowed_function_is_one_of_spark(spark: SparkSession) -> None:
    from leftfold.spark.sql.allowed import FUNCTIONS

    known = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert not sorted(FUNCTIONS - known)


def test_what_judges_sql_knows_no_spark() -> None:
    """Only the parser does; the rules are pure, so that a test can state them."""
    for name in ("allowed", "incremental", "rules"):
        file = Path(__file__).parents[2] / "framework" / "leftfold" / "spark" / "sql" / f"{name}.py"
        nodes = ast.walk(ast.parse(file.read_text("utf-8")))
        assert not [
            n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith(("pyspark", "py4j"))
        ]
