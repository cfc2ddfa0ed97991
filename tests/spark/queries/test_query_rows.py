"""What SQL makes of events, on Spark alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from leftfold import Event, QueryView, ReferenceFile
from leftfold.errors import ConfigurationError, ContractError, InfrastructureError
from leftfold.model.position import Recorded
from leftfold.spark import SparkSettings, spark_session
from leftfold.spark.queries.compute import _fits
from leftfold.spark.queries.testing import TIME, rows
from tests.domains.ledger import Moved
from tests.spark.queries.views import OwnerSums, balances, owner_frame, owner_sums, regions, still_open

CENT = Decimal("0.01")


def moved(owner: str, amount: str, *tags: str, ledger: str = "l-1") -> Moved:
    return Moved(ledger=ledger, owner=owner, amount=Decimal(amount), tags=tags)


MOVES = [moved("a", "1.10"), moved("a", "2.20"), moved("b", "-3.30"), moved("a", "-0.05", ledger="l-2")]


@pytest.mark.parametrize("view", [owner_sums, owner_frame], ids=repr)
def test_sums_are_exact_to_the_cent(spark: SparkSession, view: Any) -> None:
    assert rows(view, *MOVES, spark=spark) == {
        "a": OwnerSums("a", 3, Decimal("3.25"), Decimal("-0.05"), Decimal("2.20")),
        "b": OwnerSums("b", 1, Decimal("-3.30"), Decimal("-3.30"), Decimal("-3.30")),
    }


def test_no_events_are_no_rows(spark: SparkSession) -> None:
    assert rows(owner_sums, spark=spark) == {}
    assert rows(still_open, spark=spark) == {}


def test_metadata_of_recorded_events_are_columns(spark: SparkSession) -> None:
    at = datetime(2026, 3, 4, 5, tzinfo=UTC)
    late = Recorded(event=moved("a", "1.00"), key="l-1", id="x", time=at, version=7)
    found = rows(balances, late, moved("b", "1.00"), moved("c", "-1.00"), spark=spark)
    assert {key: row.last for key, row in found.items()} == {"a": date(2026, 3, 4), "b": TIME.date()}


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_reference_files_are_joined(spark: SparkSession, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"owners.{ending}"
    if ending == "csv":
        file.write_text("region,owner,unused\nnorth,a,1\n")
    else:
        pyarrow.parquet.write_table(pa.table({"owner": ["a"], "unused": [1], "region": ["north"]}), file)
    found = rows(regions(file), *MOVES, spark=spark)
    assert {key: row.total for key, row in found.items()} == {"north": Decimal("3.25"), "nowhere": Decimal("-3.30")}


def test_a_reference_file_that_is_not_what_its_record_says_is_named(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "owners.csv"
    with pytest.raises(ConfigurationError, match=r"owners.csv' is not there: .* is no file"):
        rows(regions(file), *MOVES, spark=spark)
    file.write_text("owner\na\n")
    with pytest.raises(ConfigurationError, match=r"view regions: .*owners.csv is not what Region says: .*region"):
        rows(regions(file), *MOVES, spark=spark)
    with pytest.raises(ConfigurationError, match=r"must end in .parquet or .csv"):
        ReferenceFile("/etc/passwd", row=OwnerSums)
    with pytest.raises(ConfigurationError, match=r"must not contain '..'"):
        ReferenceFile("leftfold:../../x.csv", row=OwnerSums)
    with pytest.raises(ConfigurationError, match="package no_such_package is not installed"):
        ReferenceFile("no_such_package:x.csv", row=OwnerSums).locate()


class Tint(Enum):
    RED = "red"


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Rank(IntEnum):
    FIRST = 1


@dataclass(frozen=True)
class Part:
    name: str
    weight: Decimal


class Painted(Event, category="paintings", key="wall"):
    wall: str
    tint: Tint
    number: UUID
    on: date
    done: bool
    at: datetime
    parts: tuple[Part, ...]
    names: frozenset[str]
    counts: dict[str, int]
    note: str | None = None


@dataclass(frozen=True)
class Wall:
    wall: str
    tint: Tint
    number: UUID
    on: date
    done: bool
    at: datetime
    parts: tuple[Part, ...]
    names: frozenset[str]
    note: str | None
    weight: Decimal
    place: tuple[int, ...]


walls = QueryView(
    "walls",
    events=Painted,
    row=Wall,
    key=lambda r: (r.number, r.wall),
    query="""
        SELECT wall, tint, number, on, done, at, parts, names, note, array(_sequence, _partition, _offset) AS place,
               CAST(aggregate(parts, CAST(0 AS DECIMAL(18, 1)), (sum, p) -> CAST(sum + p.weight AS DECIMAL(18, 1)))
                    AS DECIMAL(18, 1)) AS weight
        FROM Painted WHERE counts['x'] = 2
    """,
)


def test_every_type_of_field_arrives_as_it_was(spark: SparkSession) -> None:
    number, at = UUID(int=7), datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    parts = (Part("a", Decimal("1.5")), Part("b", Decimal("2.0")))
    reported: dict[str, Any] = {"tint": Tint.RED, "number": number, "on": date(2026, 1, 2), "done": True, "at": at}
    event = Painted(wall="w", **reported, parts=parts, names=frozenset({"x", "y"}), counts={"x": 2})
    (found,) = rows(walls, event, spark=spark).values()
    kept = tuple(Part(part.name, part.weight) for part in parts)
    assert found == Wall(
        wall="w", **reported, parts=kept, names=event.names, note=None, weight=Decimal("3.5"), place=(1, 0, 0)
    )


class Mixed(Enum):
    NUMBER = 1
    TEXT = "x"


class Word(StrEnum):
    ONE = "one"


HINTS = [(Tint, True), (Word, True), (Mixed, False), (Size, False), (Literal["a", "b"], True), (Literal["a", 1], False)]


@pytest.mark.parametrize(("hint", "fits"), HINTS, ids=str)
def test_text_is_an_enum_or_a_literal_only_if_every_value_is_found_by_it(hint: Any, fits: bool) -> None:
    assert _fits(hint, pa.string()) is fits


class Gerät(Event, category="dev-ices", key="name"):  # noqa: PLC2401  # what is tested
    name: str
    size: Size
    rank: Rank
    at: time


@dataclass(frozen=True)
class Device:
    name: str
    size: Size
    rank: Rank
    at: time
    others: tuple[Size, ...]


def devices(size: str) -> QueryView[Any, Any]:
    query = f"SELECT name, {size} AS size, rank, at, array({size}) AS others FROM `Gerät`"  # noqa: S608  # of the test
    return QueryView("devices", events=Gerät, row=Device, key=lambda r: r.name, query=query)


def test_enums_of_numbers_times_of_day_and_classes_outside_of_ascii_are_computed(spark: SparkSession) -> None:
    event = Gerät(name="g", size=Size.LARGE, rank=Rank.FIRST, at=time(12, 30))
    found = rows(devices("CAST(size AS BIGINT)"), event, spark=spark)
    assert found == {"g": Device("g", Size.LARGE, Rank.FIRST, time(12, 30), (Size.LARGE,))}
    with pytest.raises(ConfigurationError, match=r"column size is STRING, but Device.size is Size \(CAST it AS BIGINT"):
        rows(devices("size"), event, spark=spark)


def sums(query: str, **changes: Any) -> QueryView[Any, Any]:
    parts: dict[str, Any] = {"events": Moved, "row": OwnerSums, "key": lambda r: r.owner}
    return QueryView("v", query=query, **(parts | changes))


FULL = "SELECT owner, 1L AS moves, amount AS total, amount AS least, amount AS most FROM Moved"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT owner, count(*) AS moves FROM Moved GROUP BY 1", "no column total for OwnerSums.total"),
        (FULL.replace("1L AS moves", "1L AS moves, 1 AS more"), "column more is no field of OwnerSums"),
        ("SELECT owner, 1 AS moves, 1 AS total, amount AS least, amount AS most FROM Moved",
         r"column total is INT, but OwnerSums.total is Decimal \(CAST it AS DECIMAL\(18, 2\)\)"),
        ("SELECT owner, 1.5 AS moves, amount AS total, amount AS least, amount AS most FROM Moved",
         r"column moves is DECIMAL\(2,1\), but OwnerSums.moves is int \(CAST it AS BIGINT\)"),
        ("SELECT 1 AS owner, 1 AS moves, amount AS total, amount AS least, amount AS most FROM Moved",
         "column owner is INT, but OwnerSums.owner is str"),
        (FULL.replace("1L AS moves", "1L AS moves, owner"), "several columns are named owner"),
        ("SELECT nothing FROM Moved", r"UNRESOLVED_COLUMN.*`nothing`"),
        ("SELECT owner FROM Moved GROUP BY", "PARSE_SYNTAX_ERROR"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_the_row_are_named(spark: SparkSession, query: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^view v: .*{message}"):
        rows(sums(query), spark=spark)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (FULL, "the query gives several rows for the key a"),
        (FULL.replace("amount AS total", "nullif(amount, amount) AS total"),
         "column total is NULL, but OwnerSums.total cannot be None; COALESCE it"),
        (FULL.replace("owner,", "'' AS owner,"), "a row key may not be empty"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_stored_are_named(spark: SparkSession, query: str, message: str) -> None:
    with pytest.raises(ContractError, match=f"^view v: .*{message}"):
        rows(sums(query), moved("a", "1.00"), moved("a", "2.00"), spark=spark)


def test_what_is_not_exact_is_refused(spark: SparkSession) -> None:
    """A Decimal keeps ten places; more raise, and a sum that does not fit raises instead of becoming NULL."""
    with pytest.raises(ContractError, match=r"event 0: amount = .*1E-11.* does not fit .* decimal128\(38, 10\)"):
        rows(owner_sums, moved("a", "0.00000000001"), spark=spark)
    huge = moved("a", "9999999999999999999999999999")
    with pytest.raises(InfrastructureError, match="NUMERIC_VALUE_OUT_OF_RANGE|ARITHMETIC_OVERFLOW"):
        rows(owner_sums, *[huge] * 11, spark=spark)


def test_products_of_decimals_are_exact(spark: SparkSession) -> None:
    query = FULL.replace("amount AS total", "amount * amount AS total")
    found = rows(sums(query), moved("a", "0.0000000001"), spark=spark)
    assert found["a"].total == Decimal("0.00000000000000000001")


def test_a_session_that_was_there_before_is_not_stopped(spark: SparkSession) -> None:
    with spark_session(SparkSettings(master="local[2]")) as same:
        assert same.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_a_users_session_stays_as_it_is(spark: SparkSession) -> None:
    spark.catalog.dropTempView("Moved")  # of another test's, if there is one
    before = spark.conf.get("spark.sql.decimalOperations.allowPrecisionLoss")
    rows(owner_sums, *MOVES, spark=spark)
    assert spark.conf.get("spark.sql.decimalOperations.allowPrecisionLoss") == before
    assert not spark.catalog.tableExists("Moved")


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda: sums(" "), "view v: query= is empty"),
        (lambda: sums(FULL, key=lambda r: r.nothing), "key= reads nothing, which .* does not have"),
        (lambda: sums(FULL, events=int), "is no subclass of Event"),
        (lambda: sums(FULL, references={"moved": ReferenceFile("x.csv", row=Part)}), "two tables are named moved"),
        (lambda: sums(FULL, references={"a b": ReferenceFile("x.csv", row=Part)}), "'a b' is no name for a table"),
        (lambda: sums(FULL, indexes=("nothing",)), "index 'nothing' is no field"),
        (lambda: sums(FULL, late=TIME - TIME), "late=0:00:00 must be more than nothing"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_definition_names_the_view_and_the_correction(definition: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        definition()
