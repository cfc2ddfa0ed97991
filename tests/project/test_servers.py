from __future__ import annotations

from pathlib import Path

import pytest

from leftfold.local.embedded_servers import PROBES
from tests.servers import Addresses, compose_service, running


@pytest.mark.servers
def test_the_servers_of_a_run_are_ready_for_work(servers: Addresses) -> None:
    assert PROBES["kafka"](servers.kafka.split(",")[0], 10.0)
    assert PROBES["redis"](servers.redis, 10.0)


@pytest.mark.parametrize("named", ["LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_REDIS_URL", None])
def test_external_servers_must_be_named(named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    if named is not None:
        monkeypatch.setenv(named, "somewhere:1")
    with (
        pytest.raises(AssertionError, match="takes the addresses from the environment; set LEFTFOLD_"),
        running("external", tmp_path),
    ):
        pass


def test_containers_are_of_the_images_that_compose_names() -> None:
    assert compose_service("kafka")["image"] == "apache/kafka:4.3.1"
    assert compose_service("redis")["image"].startswith("redis:")
