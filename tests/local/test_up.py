"""`up`, `down` and `status`: servers that outlive the process that started them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from leftfold.cli.main import run
from leftfold.cli.run.dev import _servers as dev_servers
from leftfold.kafka.administration.groups import Groups
from leftfold.local import LocalSettings, Servers, down, kill, restart, status, up
from leftfold.local.keeper import DETACHED, Keeper
from leftfold.local.launch import ServerPlan, start_keeper, wait_answer, write_plan
from leftfold.safety import veiled
from tests.local.conftest import runs
from tests.servers import patient
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers


def write(servers: Servers, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers.kafka, "log_level": 0})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_SECONDS)
    producer = Producer({"bootstrap.servers": servers.kafka, "acks": "all", "log_level": 0})
    producer.produce(name, b"kept")
    assert producer.flush(WAIT_SECONDS) == 0
    with redis.Redis.from_url(servers.redis) as client:
        client.set(name, "kept")


def read(servers: Servers, name: str) -> tuple[bytes | None, bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers.kafka, "group.id": "test", "log_level": 0})
    consumer.assign([TopicPartition(name, 0, 0)])
    message = consumer.poll(WAIT_SECONDS)
    consumer.close()
    with redis.Redis.from_url(servers.redis) as client:
        row = client.get(name)
    assert isinstance(row, bytes | None)
    value = message.value() if message is not None else None
    assert isinstance(value, bytes | None)
    return value, row


def pids(data: Path) -> dict[str, int]:
    return {server.name: server.pid for server in status(data).servers}


def test_servers_are_reported_in_a_file_and_by_status(settings: LocalSettings) -> None:
    servers = up(settings)
    reported = json.loads((settings.data / "servers.json").read_text("utf-8"))
    seen = status(settings.data)
    assert reported.pop("advice") == seen.advice == "start it: leftfold up"
    assert reported == {"kafka": servers.kafka, "redis": servers.redis, "pids": pids(settings.data)}
    assert [(server.name, server.address, server.up) for server in seen.servers] == [
        ("kafka", servers.kafka, True),
        ("redis", veiled(servers.redis), True),
    ]
    assert all(server.log.is_file() and server.uptime > 0 for server in seen.servers)


def test_a_second_up_finds_the_running_servers(settings: LocalSettings) -> None:
    first = up(settings)
    before = pids(settings.data)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(up, [settings, settings])) == [first, first]
    assert pids(settings.data) == before


def test_the_shell_prints_no_password(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    up(settings)
    monkeypatch.setenv("LEFTFOLD_DATA", str(settings.data))
    assert run(["up"]) == run(["up", "--json"]) == 0
    run(["status", "--app", "tests.cli.tower:app"])
    run(["status", "--app", "tests.cli.tower:app", "--json"])
    with dev_servers(None, None, lambda what, details: print(what, dict(details)), Event(), shown=False):
        pass
    reported = capfd.readouterr()
    password = (settings.data / "redis" / "password").read_text("utf-8").strip()
    assert "servers were there" in reported.out
    assert password not in reported.out + reported.err
    assert veiled("redis://:secret@127.0.0.1") in reported.out


def test_data_and_ports_survive_down_and_up_and_the_broker_knows_its_groups_at_once(settings: LocalSettings) -> None:
    """What one that still loads groups says, the first to ask meets: `leftfold doctor` right behind `leftfold up`."""
    first = up(settings)
    write(first, "survives-down")
    before = pids(settings.data)
    assert down(settings.data)
    assert not any(map(runs, before.values()))
    assert not (settings.data / "servers.json").exists()
    assert status(settings.data).servers == ()
    assert not down(settings.data)
    assert up(settings) == first
    with Groups(patient(first.kafka)) as groups:
        assert groups.committed("leftfold.unknown", ["nothing"]).offsets == {}
    assert read(first, "survives-down") == (b"kept", b"kept")


def test_data_survive_a_crash_of_the_servers_and_up_starts_what_is_missing(settings: LocalSettings) -> None:
    servers = up(settings)
    write(servers, "survives-crash")
    kill(settings.data, "kafka")
    kill(settings.data, "redis")
    down_now = status(settings.data).servers
    assert [server.up for server in down_now] == [False, False]
    assert all(server.reason == "was killed (SIGKILL)" for server in down_now)
    assert up(settings) == servers
    assert read(servers, "survives-crash") == (b"kept", b"kept")


def test_a_restarted_server_keeps_its_port_and_leaves_the_other_alone(settings: LocalSettings) -> None:
    servers = up(settings)
    before = pids(settings.data)
    restart(settings.data, "redis")
    after = pids(settings.data)
    assert after["redis"] != before["redis"]
    assert after["kafka"] == before["kafka"]
    assert json.loads((settings.data / "servers.json").read_text("utf-8"))["pids"] == after
    assert up(settings) == servers


def test_servers_die_with_a_killed_keeper_and_the_next_up_starts_afresh(tmp_path: Path) -> None:
    settings, want = LocalSettings(data=tmp_path), frozenset({"redis"})
    servers = up(settings, want=want)
    try:
        before = pids(tmp_path)
        keeper = status(tmp_path).keeper
        assert keeper is not None
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not any(map(runs, before.values())), "the end of the servers of a killed keeper")
        assert (tmp_path / "servers.json").exists()
        assert status(tmp_path).servers == ()
        assert up(settings, want=want) == servers
        assert all(map(runs, pids(tmp_path).values()))
    finally:
        down(tmp_path)


def kept(data: Path) -> list[int]:
    """Starts a keeper with one process, without a server's own cost; their ids."""
    data.mkdir()
    plan = ServerPlan("redis", "127.0.0.1:1", ("sleep", "600"), data / "log", (data / "log",))
    request = write_plan(data, [plan], stop_seconds=WAIT_SECONDS)
    start_keeper(data, DETACHED)
    record = wait_answer(data, request)
    return [record.pid, record.servers["redis"].pid]


def test_servers_end_with_their_deleted_directory_and_leave_those_of_a_new_one_alone(tmp_path: Path) -> None:
    """No command would find them, and each `up` behind `git clean -fdx` would add a Kafka and a Redis."""
    data = tmp_path / "data"
    before = kept(data)
    shutil.rmtree(data)
    after = kept(data)
    try:
        wait_until(lambda: not any(map(runs, before)), "the end of the servers of a deleted directory")
        assert all(map(runs, after))
        assert [status(data).keeper, *pids(data).values()] == after
    finally:
        assert down(data)
    assert not any(map(runs, after))


def test_a_lock_that_a_network_file_system_has_forgotten_is_a_deleted_one(tmp_path: Path) -> None:
    assert Keeper(tmp_path, DETACHED, -1)._is_deleted()


def test_a_relay_of_tls_that_died_is_started_again(tmp_path: Path) -> None:
    """Without it the plain port would be announced, which no client with a certificate can use."""
    only, data = frozenset({"redis"}), tmp_path / "data"
    secured = LocalSettings().model_copy(update={"data": data, "secure": True})
    try:
        first = up(secured, want=only)
        kill(data, "redis-tls")
        again = up(secured, want=only)
        assert again.redis == first.redis
        assert again.redis.startswith("rediss://")
        assert {server.name for server in status(data).servers if server.up} == {"redis", "redis-tls"}
    finally:
        down(data)
