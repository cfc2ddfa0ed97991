"""The specification of formats names only files that exist, and only names that the code writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORK = ROOT / "framework" / "leftfold"
PAGE = ROOT / "docs" / "specification.md"
NAMED_PATH = re.compile(r"`(?:framework/leftfold/)?((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`")
PLACEHOLDER = re.compile(r"\{[\w ]+\}")


@pytest.mark.parametrize(("page", "least"), [("specification.md", 60), ("architecture.md", 20)])
def test_files_that_a_page_names_exist(page: str, least: int) -> None:
    named = set(NAMED_PATH.findall((ROOT / "docs" / page).read_text("utf-8")))
    assert len(named) >= least
    assert not sorted(name for name in named if not any((base / name).exists() for base in (FRAMEWORK, ROOT)))


def tables() -> Iterator[tuple[str, list[str]]]:
    """Each row of the page's tables: the heading of its first column, and the names in backticks of its first cell."""
    heading = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if not line.startswith("|"):
            heading = ""
        elif not heading:
            heading = line.split("|")[1].strip()
        elif not line.startswith("|---"):
            yield heading, re.findall(r"`([^`]+)`", line.split("|")[1])


def listed(*headings: str) -> set[str]:
    """The names in the first column of the tables with one of these headings."""
    found = {name for heading, names in tables() for name in names if heading in headings}
    assert found, headings
    return found


def pattern(name: str) -> str:
    """The name with every placeholder as {}."""
    return PLACEHOLDER.sub("{}", name)


def template(text: ast.JoinedStr) -> str:
    """The f-string with every placeholder as {}."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in text.values)


def texts_of(*modules: str) -> set[str]:
    """The texts of some modules or folders of the framework, f-strings as patterns, and the fields of classes."""
    found: set[str] = set()
    for path in (path for module in modules for path in _files(FRAMEWORK / module)):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
                found.add(node.value if isinstance(node.value, str) else node.value.decode(errors="replace"))
            elif isinstance(node, ast.JoinedStr):
                found.add(template(node))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@cache
def texts() -> frozenset[str]:
    """The texts of the parts that write formats."""
    return frozenset(texts_of("model", "ports", "engine", "kafka", "redis", "parquet", "faust"))


def returned_by_keys() -> set[str]:
    """The patterns of the names that functions of model/keys.py return."""
    tree = ast.parse((FRAMEWORK / "model" / "keys.py").read_text("utf-8"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return {template(value) for value in values if isinstance(value, ast.JoinedStr)}


def test_topics_groups_and_leases_are_those_that_the_code_names() -> None:
    assert set(map(pattern, listed("topic", "group", "lease"))) == returned_by_keys()


def test_headers_and_reserved_types_occur_in_the_code() -> None:
    headers = listed("header", "reserved type")
    assert {"ce_id", "ce_decision", "reply_to", "origin", "dead_source", "leftfold.due.v1"} <= headers
    assert not sorted(headers - texts())


def test_headers_that_the_code_reads_or_writes_are_on_the_page() -> None:
    headers = {text for text in texts() if re.fullmatch(r"(?:ce|reply)_[a-z]+", text)}
    assert len(headers) > 10
    assert not sorted(headers - listed("header"))


def test_redis_keys_are_made_of_what_the_code_writes() -> None:
    keys = set(map(pattern, listed("key")))
    assert {"view:{}", "v:{{}:{}:{}}@", "v:{{}:{}}!", "members:{}"} <= keys
    known = texts_of("redis/keys.py")
    assert not sorted(key for key in keys if not is_made_of(key, known))


def test_fields_of_the_registry_are_made_of_what_the_code_writes() -> None:
    fields = set(map(pattern, listed("field of the registry")))
    assert {"live:{}", "g:{}", "folds", "attempt"} <= fields
    known = texts_of("redis/stored_values.py")
    assert not sorted(field for field in fields if not is_made_of(field, known))


def is_made_of(name: str, known: set[str]) -> bool:
    """Whether a pattern is a text of the code, with another one or a placeholder behind it."""
    behind = {text + end for text in known if text for end in ("", "{}")} | {"", "{}"}
    return any(name.startswith(text) and name.removeprefix(text) in behind for text in known if text)


def test_fields_columns_and_phases_occur_in_the_code() -> None:
    fields = listed("field", "field of a checkpoint", "field of a manifest", "column", "phase")
    assert {"answered", "checksum", "spans", "sequence", "pinned"} <= fields
    assert not sorted(fields - texts())


def test_files_of_the_archive_are_named_as_the_code_names_them() -> None:
    known = "\n".join(texts_of("parquet"))
    parts = {part for name in listed("file") for part in re.split(r"\{\w+\}|[/-]", name) if part}
    assert {"day=", "_manifest", "_lease.json", ".parquet"} <= parts
    assert not sorted(part for part in parts if part not in known)
