"""Views computed by Spark or by a user's stream processor, and the reference tables that their queries join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path, PurePosixPath
from typing import Any, Generic, NoReturn

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.model.keys import KeyCodec, key_type
from leftfold.model.messages import Event
from leftfold.model.state_codec import Storage
from leftfold.model.typing import is_record, record_fields
from leftfold.model.view import View

__all__ = ["METADATA", "QueryView", "ReferenceFile", "StreamedView", "TableView", "UnusableReference"]


_FORMATS = ("parquet", "csv")


class UnusableReference(ConfigurationError):
    """A reference file does not exist, cannot be read, or is not what its record says.

    A worker that has read the file once reads it again later instead of ending: it may be about to be replaced.
    """


@dataclass(frozen=True)
class ReferenceFile:
    """A reference table: a Parquet file, or a CSV file with a header line, whose columns a record declares.

    A query reads the file as it is when the query begins; a refresh after a change of the file reads the change.

    Args:
        path: absolute, relative to the working directory, or `package:path` for a file inside an installed package.
        row: a frozen dataclass or model; its fields are the columns that queries see, with their types.

    Raises:
        ConfigurationError: the path has another ending, leads out of its package, or the row cannot be stored.
    """

    path: str
    row: type = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ConfigurationError(f"reference file {self.path!r} must end in .{' or .'.join(_FORMATS)}")
        if ".." in PurePosixPath(self.path.rpartition(":")[2]).parts:
            raise ConfigurationError(f"reference file {self.path!r} must not contain '..'; say where it is")
        if not is_record(self.row):
            raise ConfigurationError(f"reference file {self.path!r}: row={self.row!r} must be a frozen dataclass")
        Storage(self.row, f"reference file {self.path!r}: row")

    @property
    def format(self) -> str:
        """The file format, `parquet` or `csv`, from the path's ending."""
        return self.path.rpartition(".")[2].lower()

    def locate(self) -> Path:
        """The path of the file on this machine.

        Raises:
            ConfigurationError: its package is not installed.
            UnusableReference: there is no such file.
        """
        package, _, inside = self.path.rpartition(":")
        found = _package(package, self.path) / inside if package else Path(inside)
        if not found.is_file():
            raise UnusableReference(f"reference file {self.path!r} is not there: {found.absolute()} is no file")
        return found

    def fingerprint(self) -> str:
        """A hash of the file's present content.

        Raises:
            ConfigurationError: its package is not installed.
            UnusableReference: there is no such file, or it cannot be read.
        """
        hashed = blake2b(digest_size=8)
        try:
            with self.locate().open("rb") as file:
                while block := file.read(1 << 20):
                    hashed.update(block)
        except OSError as error:
            raise UnusableReference(
                f"reference file {self.path!r} cannot be read ({error}); give this process the right to read it"
            ) from error
        return hashed.hexdigest()


def _package(name: str, path: str) -> Path:
    try:
        spec: Any = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(f"reference file {path!r}: package {name} is not installed; install it")
    return Path(next(iter(spec.submodule_search_locations)))


E = TypeVar("E", bound=Event)
Row = TypeVar("Row")
K = TypeVar("K", default=str)
METADATA = ("_key", "_time", "_sequence", "_partition", "_offset", "_id")
"""Metadata columns that every table of events has beside the event's own fields."""


class TableView(View[Row, K]):
    """The base of views computed from tables: a table per event class and per reference file.

    Its rows are keyed by their own fields. It is refreshed as a whole, so projectors skip it.
    """

    folded = False
    key: Callable[[Row], K]
    references: Mapping[str, ReferenceFile]

    @property
    def tables(self) -> dict[str, type[Event]]:
        """The event classes by the name of their table."""
        return {cls.__leftfold__.name: cls for cls in self.events}

    @property
    def code(self) -> tuple[object, ...]:
        """The functions that the view's rows depend on."""
        return (self.key,)

    def row_key(self, row: Row) -> str:
        """The encoded key of a row."""
        return self.keys.encode(self.key(row))

    def touches(self, event: Event, stream: str) -> NoReturn:
        """Raises ConfigurationError: the rows of this view are not folded."""
        raise ConfigurationError(
            f"view {self.name} is computed from tables and not folded; in tests: "
            "leftfold.spark.queries.testing.rows(view, ...)"
        )

    def _tabled(self, key: Callable[[Row], K], references: Mapping[str, ReferenceFile]) -> None:
        where = f"view {self.name}"
        self.key, self.references = key, dict(references)
        self.keys = KeyCodec(key_type(key, [self.rows.row], where), where)
        _check_names(where, [*(cls.__leftfold__.name for cls in self.events), *references])
        for cls in self.events:
            for name in METADATA:
                if name in cls.model_fields:
                    raise ConfigurationError(f"{where}: {cls.__name__}.{name} has the name of a metadata column")

    def _definition(self) -> list[Any]:
        return [{name: [file.path, _schema(file)] for name, file in sorted(self.references.items())}]


class QueryView(TableView[Row, K]):
    """A view whose rows are the result of a SQL query over tables of events.

    There is one table per event class, named by the event's wire name. Every table has the event's fields and
    `_key, _time, _sequence, _partition, _offset, _id`. The columns of the result are the fields of the row. SQL is
    checked before it runs: reading only, deterministic functions only.

    Args:
        key: the row's key, a plain lambda on fields or a function with a return type; two rows of one key are an error.
        query: one SELECT statement in Spark's SQL.
        references: files that may be joined, by the name of their table.
        late: how long a streaming query waits for late events by `_time` before it drops a group. Such a view is
            approximate.
        version: raised when the rows change meaning although the text of the query does not.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        key: Callable[[Row], K],
        query: str,
        references: Mapping[str, ReferenceFile] = {},  # only read
        indexes: Sequence[str] = (),
        late: timedelta | None = None,
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        self._tabled(key, references)
        self.query, self.late, self.approximate = cleandoc(query), late, late is not None
        if not self.query:
            raise ConfigurationError(f"view {name}: query= is empty; write one SELECT statement")
        if late is not None and late <= timedelta(0):
            raise ConfigurationError(f"view {name}: late={late} must be more than nothing, such as timedelta(hours=1)")

    def _definition(self) -> list[Any]:
        return [*super()._definition(), self.query, self.late.total_seconds() if self.late is not None else None]


def _check_names(where: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name.isidentifier():
            raise ConfigurationError(f"{where}: {name!r} is no name for a table; use letters, digits and _")
        if name.lower() in seen:
            raise ConfigurationError(
                f"{where}: two tables are named {name} (SQL does not see case); give one event class another name=, "
                f"or one reference another key"
            )
        seen[name.lower()] = name


def _schema(file: ReferenceFile) -> dict[str, str]:
    return {name: str(hint) for name, hint in record_fields(file.row).items()}


class StreamedView(View[Row, K], Generic[Row, K]):
    """A view whose rows a user's stream processor computes from events, read like those of any view.

    Projectors and rebuilds cannot fold it: to rebuild it, the stream processor reads the log once more, into a new
    generation.

    Args:
        events: the events that rows are computed from; positions of their topics are in the view's checkpoints.
        key: the row's key, a plain lambda on fields or a function with a return type.
        version: raised when the rows change meaning; readers then wait until the new ones have caught up.
    """

    folded = False
    streamed = True
    key: Callable[[Row], K]

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        row: type[Row],
        key: Callable[[Row], K],
        indexes: Sequence[str] = (),
        version: int = 1,
    ) -> None:
        self._named(name, events, row, indexes, version)
        self.key = key
        self.keys = KeyCodec(key_type(key, [row], f"view {name}"), f"view {name}")

    def row_key(self, row: Row) -> str:
        """The encoded key of a row."""
        return self.keys.encode(self.key(row))

    def touches(self, event: Event, stream: str) -> NoReturn:
        """Raises ConfigurationError: the rows of this view are not folded."""
        raise ConfigurationError(f"view {self.name} is kept by a stream of its own and cannot be folded")
