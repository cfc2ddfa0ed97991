from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers import compose_service

ROOT = Path(__file__).parents[2]
# podman-compose reads, merges and orders as any compose does and then calls an engine; this one writes the calls down.
ENGINE = """#!/bin/sh
printf '%s\\n' "$*" >> "$(dirname "$0")/calls"
case "$*" in *version*) echo "podman version 5.5.0" ;; *) echo "[]" ;; esac
"""


def compose(tmp_path: Path, *arguments: str) -> tuple[str, list[str]]:
    """What compose prints, and what it asks an engine to do."""
    engine = tmp_path / "podman"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    (tmp_path / "calls").touch()
    command = [
        sys.executable,
        "-m",
        "podman_compose",
        "--podman-path",
        str(engine),
        "-f",
        "docker-compose.yml",
        *arguments,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240.0)
    assert done.returncode == 0, done.stderr
    return done.stdout, (tmp_path / "calls").read_text().splitlines()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return compose(tmp_path_factory.mktemp("engine"), "up", "-d", "--build")[1]


def test_a_compose_implementation_reads_the_file(tmp_path: Path) -> None:
    merged = yaml.safe_load(compose(tmp_path, "config")[0])
    assert {"kafka", "redis", "spark-master", "spark-worker", "baskets", "projector"} <= set(merged["services"])


def created(calls: list[str]) -> dict[str, str]:
    found = ((re.search(r"--name=leftfold_(\S+)", call), call) for call in calls if call.startswith("create "))
    return {match[1]: call for match, call in found if match}


def test_up_makes_every_part_and_two_processes_for_the_baskets(calls: list[str]) -> None:
    assert set(created(calls)) == {
        "kafka_1", "redis_1", "spark-master_1", "spark-worker_1", "baskets_1", "baskets_2", "projector_1",
    }  # fmt: skip


def test_workers_wait_for_healthy_servers_and_know_their_addresses(calls: list[str]) -> None:
    before = calls[: next(n for n, call in enumerate(calls) if call == "start leftfold_baskets_1")]
    assert any("wait --condition=healthy" in call and "leftfold_kafka_1" in call for call in before)
    for name in ("baskets_1", "baskets_2", "projector_1"):
        assert "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=kafka:9092" in created(calls)[name]
        assert "LEFTFOLD_REDIS_URL=redis://redis:6379/0" in created(calls)[name]


def test_our_image_is_built_from_our_dockerfile(calls: list[str]) -> None:
    assert any(re.match(r"build -f \S*Dockerfile -t leftfold:\S+", call) for call in calls)
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}\n" in (ROOT / ".dockerignore").read_text() + "\n"


def test_the_projector_folds_every_view_of_the_app() -> None:
    from services.baskets.app import app

    names = [name for name in compose_service("projector")["command"][2:] if not name.startswith("-")]
    assert sorted(names) == sorted(view.name for view in app.views)


def test_the_workers_run_what_the_app_has() -> None:
    from services.baskets.app import app

    command: list[Any] = compose_service("baskets")["command"]
    assert command[:2] == ["leftfold", "run"]
    assert [app.decider(name).name for name in command[2:] if not name.startswith("-")] == ["baskets"]


def test_sparks_worker_works_where_the_user_of_the_image_may_write() -> None:
    command = compose_service("spark-worker")["command"]
    assert command[command.index("--work-dir") + 1].startswith("/tmp/")  # inside its container


def test_the_other_services_of_the_chain_are_there_for_the_asking(tmp_path: Path) -> None:
    from tests.reference.chain import apps

    calls = compose(tmp_path, "--profile", "chain", "up", "-d")[1]
    for app in apps[1:]:
        assert f"leftfold run --app services.{app.name}.app:app" in created(calls)[f"{app.name}_1"]
        assert "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=kafka:9092" in created(calls)[f"{app.name}_1"]


def test_redis_keeps_what_is_written_to_it_and_throws_nothing_away() -> None:
    command = " ".join(compose_service("redis")["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
