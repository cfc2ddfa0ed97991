from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
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


def test_no_call_is_made_that_aborts_the_process_when_a_broker_restarts() -> None:
    """librdkafka#4605: its newer questions about groups assert; `Cluster.groups` asks in the older way."""
    called = {
        f"{path.relative_to(ROOT)}: {node.attr}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ABORTING
    }
    assert called == AT_ONCE


def test_every_client_of_kafka_logs_through_pythons_logging() -> None:
    """Librdkafka's own lines on standard error would stand between lines of JSON."""
    silent = {"framework/leftfold/local/kafka.py"}
    raw = {
        f"{name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        if (name := str(path.relative_to(ROOT))) not in silent
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in {"Consumer", "Producer", "AdminClient"}
        and "logger" not in {keyword.arg for keyword in node.keywords}
    }
    assert not raw


def exported(module: ModuleType) -> list[str]:
    names: list[str] = module.__all__
    return names


def source(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text("utf-8"))


def has_code(module: ModuleType) -> bool:
    return any(not isinstance(node, ast.Expr) for node in source(module).body)


def defined(module: ModuleType) -> set[str]:
    """What the module makes itself under a public name: classes and functions."""
    return {
        node.name
        for node in source(module).body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    }


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
