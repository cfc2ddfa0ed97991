from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "framework" / "leftfold"
NAMES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__main__.py"
]


ABORTING = {"list_consumer_groups", "describe_consumer_groups", "list_consumer_group_offsets"}
ABORTING |= {"alter_consumer_group_offsets", "delete_consumer_groups"}
AT_ONCE = {"framework/leftfold/kafka/administration/groups.py: alter_consumer_group_offsets"}
"""`leftfold log skip`, which ends with it."""


def nodes(words: Iterable[str]) -> Iterator[tuple[str, ast.AST]]:
    """The syntax of the package's files in which one of these words is: the name of its file, and each node."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        if any(word in text for word in words):
            for node in ast.walk(ast.parse(text)):
                yield str(path.relative_to(ROOT)), node


def test_no_call_is_made_that_aborts_the_process_when_a_broker_restarts() -> None:
    """librdkafka#4605: its newer questions about groups assert; `Cluster.groups` asks in the older way."""
    called = {
        f"{name}: {node.attr}"
        for name, node in nodes(ABORTING)
        if isinstance(node, ast.Attribute) and node.attr in ABORTING
    }
    assert called == AT_ONCE


def test_every_client_of_kafka_logs_through_pythons_logging() -> None:
    """Librdkafka's own lines on standard error would stand between lines of JSON."""
    silent, clients = {"framework/leftfold/local/kafka.py"}, {"Consumer", "Producer", "AdminClient"}
    raw = {
        f"{name}:{node.lineno}"
        for name, node in nodes(f"{client}(" for client in clients)
        if name not in silent
        and isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in clients
        and "logger" not in {keyword.arg for keyword in node.keywords}
    }
    assert not raw


def test_sources_are_parsed_where_one_thread_at_a_time_does() -> None:
    """In CPython 3.11 threads that parse at once fail; `parse_source` has a lock."""
    parse = re.compile(r"\bast\.(?:parse|literal_eval)\b|\bfrom ast import\b|(?<![.\w])compile\(")
    found = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if parse.search(path.read_text("utf-8"))}
    assert found == {"framework/leftfold/model/typing.py"}


def exported(module: ModuleType) -> list[str]:
    names: list[str] = module.__all__
    return names


def has_code(module: ModuleType) -> bool:
    """Whether there is more in it than its docstring."""
    return Path(str(module.__file__)).read_text("utf-8").strip() != f'"""{module.__doc__}"""'


@pytest.mark.parametrize("name", NAMES)
def test_all_is_there_and_true(name: str) -> None:
    module = importlib.import_module(name)
    if not has_code(module):
        return
    assert hasattr(module, "__all__"), f"{name} says nowhere what is public in it"
    assert len(set(exported(module))) == len(exported(module))
    missing = [one for one in exported(module) if not hasattr(module, one)]
    assert not missing, f"{name}.__all__ names {missing}, which are not in it"
    assert not [one for one in exported(module) if one.startswith("_") and one != "__version__"]


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Everything public that the module itself defines, methods included."""
    for name in exported(module) if hasattr(module, "__all__") else ():
        thing = getattr(module, name)
        if getattr(thing, "__module__", None) != module.__name__:
            continue
        yield name, thing
        if inspect.isclass(thing):
            for attribute, member in vars(thing).items():
                if not attribute.startswith(("_", "test_")) and (
                    inspect.isfunction(member) or isinstance(member, property)
                ):
                    yield f"{name}.{attribute}", member


@pytest.mark.parametrize("name", NAMES)
def test_everything_public_says_what_it_is_for(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    silent = [what for what, thing in public(module) if callable(thing) and not inspect.getdoc(thing)]
    assert not silent


def test_the_front_door_has_a_name_for_what_users_write() -> None:
    import leftfold

    for name in ("App", "Command", "Decider", "DomainError", "Event", "FoldView", "SpreadView", "connect", "memory"):
        assert name in leftfold.__all__


def test_importing_leftfold_costs_pydantic_only() -> None:
    heavy = [
        "confluent_kafka",
        "opentelemetry",
        "redis",
        "pyspark",
        "pandas",
        "pyarrow",
        "typer",
        "rich",
        "structlog",
        "pydantic_settings",
    ]
    code = f"import sys, leftfold; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
