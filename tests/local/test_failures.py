"""What users read when the embedded servers cannot run."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local import LocalSettings, down, embedded, status, up
from leftfold.local.embedded_servers import cause
from leftfold.local.launch import ServerRecord
from leftfold.local.secure import Secure
from leftfold.spark.core.session import SparkSettings

REDIS = frozenset({"redis"})
KAFKA = frozenset({"kafka"})


def test_a_kept_port_that_another_process_took_is_named_with_the_file_that_keeps_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "ports.json").write_text(json.dumps({"redis": port}), "utf-8")
        with pytest.raises(ConfigurationError, match=rf"port {port} of the embedded redis .*ports\.json"):
            up(LocalSettings(data=tmp_path), want=REDIS)
        with pytest.raises(ConfigurationError, match=f"port {port} of the embedded redis .*LEFTFOLD_LOCAL_REDIS_PORT"):
            up(LocalSettings(data=tmp_path, redis_port=port), want=REDIS)
    assert status(tmp_path).keeper is None


def test_a_data_directory_that_is_a_file_is_named_with_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=f"{file} cannot be written.*LEFTFOLD_DATA"):
        up(LocalSettings(data=file))


def test_an_unknown_server_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no embedded server 'zookeeper'; there are kafka, redis"):
        up(LocalSettings(data=tmp_path), want=frozenset({"zookeeper"}))


def test_in_a_file_that_is_no_directory_nothing_runs(tmp_path: Path) -> None:
    file = tmp_path / ".leftfold"
    file.touch()
    assert status(file).keeper is None
    assert not down(file)


def test_advice_to_type_quotes_the_path_of_the_data(tmp_path: Path) -> None:
    data = tmp_path / "o'brien b"
    (data / "other").mkdir(parents=True)
    data.chmod(0o755)
    with pytest.raises(ConfigurationError) as refused:
        up(LocalSettings(data=data))
    assert shlex.split(str(refused.value).rpartition("type: ")[2]) == ["chmod", "700", str(data)]
    Secure(data, {"worker": "w"}).tell("127.0.0.1:1", "redis://127.0.0.1:2")
    assert f"LEFTFOLD_KAFKA_SSL_CA_LOCATION={data}/ca.pem" in shlex.split((data / "worker.env").read_text("utf-8"))


@pytest.mark.parametrize("settings", [LocalSettings, SparkSettings])
def test_a_user_without_a_home_reads_which_variable_names_the_directory_of_caches(
    settings: type[LocalSettings | SparkSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # a user of whom this machine knows nothing
    with pytest.raises(ConfigurationError, match="set HOME or XDG_CACHE_HOME"):
        _ = settings().cache


@pytest.mark.servers
@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (
            LocalSettings(kafka_properties={"log.segment.bytes": "nonsense"}),
            "Invalid value nonsense for configuration log.segment",
        ),
        (LocalSettings(kafka_memory="nonsense"), "Invalid maximum heap size: -Xmxnonsense"),
    ],
)
def test_a_broker_that_dies_at_its_start_shows_its_log_and_leaves_nothing_running(
    data: Path, settings: LocalSettings, reported: str
) -> None:
    with (
        pytest.raises(InfrastructureError, match=f"(?s){data}/kafka.*{reported}"),
        embedded(data, settings=settings, want=KAFKA),
    ):
        pass
    assert status(data).keeper is None


def test_a_full_disk_is_named_before_the_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "ERROR LogDirFailureChannel: java.io.IOException: No space left on device\n\tat java.base/x\n", "utf-8"
    )
    server = ServerRecord(pid=1, address="127.0.0.1:1", since=0.0, exit=1, logs=(log,), begins=(0,))
    assert cause(server) == (
        "the disk is full; free some space or set LEFTFOLD_DATA to a larger one\n"
        f"{log}:\nERROR LogDirFailureChannel: java.io.IOException: No space left on device"
    )


def test_what_a_predecessor_wrote_is_not_taken_for_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("java.io.IOException: No space left on device\n", "utf-8")
    begin = log.stat().st_size
    server = ServerRecord(pid=1, address="127.0.0.1:1", since=0.0, exit=1, logs=(log,), begins=(begin,))
    assert cause(server) == f"it wrote no log; see {log}"
    with log.open("a", encoding="utf-8") as file:
        file.write("FATAL: something else\n")
    assert cause(server) == f"{log}:\nFATAL: something else"
