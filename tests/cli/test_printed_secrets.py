"""Passwords do not appear in what commands and settings say, however they were written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leftfold.cli.main import run, tell
from leftfold.errors import ConfigurationError
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import LocalSettings
from leftfold.parquet import ArchiveSettings
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.redis import RedisSettings
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.logging import open_report
from leftfold.safety import veiled
from leftfold.spark.core.session import SparkSettings

SECRET = "canary"
APP = "tests.cli.tower:app"
NOWHERE = "127.0.0.1:1"
URLS = """
redis://:canary@127.0.0.1:1/0 redis://u:canary@127.0.0.1:1 rediss://u:canary@127.0.0.1:1
redis+sentinel://u:canary@127.0.0.1:1,127.0.0.1:2/svc redis+cluster://u:canary@127.0.0.1:1,127.0.0.1:2
redis+cluster://u:canary@127.0.0.1:port redis://u:canary@127.0.0.1:port/0 redis://u:canary@127.0.0.1:99999/0
redis://u:x@canary@127.0.0.1:1/0 redis://u:x/canary@127.0.0.1:1/0 redis://u:x:canary@127.0.0.1:1/0
redis://u:x%40canary%2F@127.0.0.1:1/0 redis://127.0.0.1:1/0?password=canary
unix:///no/such/socket?db=0&password=canary :canary@127.0.0.1 u:canary@127.0.0.1:6379
"""
URIS = """
nosuch://key:canary@bucket/p nosuch://key:a/canary@bucket/p nosuch://bucket/p?secret=canary
nosuch://bucket/p?x=1&sig=canary s3://key:canary@bucket/p?nosuch=canary s3://bucket/p?secret_key=canary
https://h/p?access_token=canary#canary=canary
"""


def said_by(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """What a command writes that fails."""
    assert run(words) != 0
    result = capfd.readouterr()
    assert result.err, "it says why"
    return result.out + result.err


@pytest.mark.parametrize("url", URLS.split())
def test_the_shell_repeats_no_password_of_a_redis(
    url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["get", "wound", "x", "--app", APP]
    assert SECRET not in said_by([*words, "--redis", url], capfd)
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", url)
    assert SECRET not in said_by(words, capfd)
    assert SECRET not in said_by(["--traceback", *words], capfd)


@pytest.mark.parametrize(
    "brokers", ["u:canary@127.0.0.1:1", ":canary@127.0.0.1:1", "SASL_SSL://u:canary@127.0.0.1:1", "h:1,u:canary@h:1"]
)
def test_the_shell_repeats_no_login_in_the_brokers(brokers: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = said_by(["events", "tower", "x", "--kafka", brokers], capfd)
    assert SECRET not in result
    assert "LEFTFOLD_KAFKA_SASL_PASSWORD" in result


@pytest.mark.parametrize(
    "environment",
    [
        {"KAFKA_SASL_PASSWORD": "canary"},
        {"KAFKA_SASL_PASSWORD": "canary", "KAFKA_REQUEST_TIMEOUT": "soon"},
        {"KAFKA_SASL_PASSWORD": "canary", "KAFKA_REPLICATION_FACTOR": "0"},
        {"KAFKA_SASL_PASSWORD": "canary", "KAFKA_SASL_MECHANISM": "GUESS"},
        {"KAFKA_SSL_KEY_PASSWORD": "canary"},
        {"KAFKA_SECURITY_PROTOCOL": "canary"},
        {"REDIS_PASSWORD": "canary", "REDIS_TIMEOUT": "soon"},
        {"REDIS_SENTINEL_PASSWORD": "canary", "REDIS_CONNECTIONS": "many"},
        {"REDIS_URL": "redis://u:canary@h", "REDIS_HISTORY": "0"},
    ],
)
def test_settings_of_a_wrong_shape_are_named_without_their_values(
    environment: dict[str, str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"KAFKA_BOOTSTRAP_SERVERS": NOWHERE, "REDIS_URL": f"redis://{NOWHERE}", **environment}
    for name, value in given.items():
        monkeypatch.setenv(f"LEFTFOLD_{name}", value)
    monkeypatch.setenv("LEFTFOLD_TRACEBACK", "1")
    of_kafka = any(name.startswith("KAFKA") for name in environment)
    words = ["events", "tower", "x"] if of_kafka else ["get", "wound", "x", "--app", APP]
    assert SECRET not in said_by(words, capfd)
    with pytest.raises(ConfigurationError) as raised:
        (kafka_settings if of_kafka else redis_settings)()
    assert SECRET not in f"{raised.value!s} {raised.value!r}"


@pytest.mark.parametrize(
    "line",
    [
        "sasl.password:canary",
        "sasl.password canary",
        "sasl.password : canary",
        "sasl.passwords=canary",
        "ssl.truststore.password=canary",
        'sasl.jaas.config=org.x.Custom required password="canary";',
        '    password="canary";',
        '"canary";',
        "canary",
    ],
)
def test_a_properties_file_that_is_wrong_is_named_by_its_place(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={NOWHERE}\n{line}\n", "utf-8")
    monkeypatch.setenv("LEFTFOLD_KAFKA_PROPERTIES", str(file))
    assert SECRET not in said_by(["events", "tower", "x"], capfd)
    with pytest.raises(ConfigurationError) as raised:
        kafka_settings()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("uri", URIS.split())
def test_an_archive_is_called_without_its_keys(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["log", "verify-archive", "tower", "--archive", uri]
    assert SECRET not in said_by(words, capfd)
    with pytest.raises(Exception, match="the archive") as raised:
        ArchiveFileSystem(uri)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparkSettings(properties=["canary"]),  # type: ignore[arg-type]
        lambda: SparkSettings(properties={"spark.redis.password": {"canary": 1}}),  # type: ignore[dict-item]
        lambda: LocalSettings(redis_password="canary", start_timeout="soon"),  # type: ignore[arg-type]
        lambda: ArchiveSettings(dir={"secret": "canary"}),  # type: ignore[arg-type]
        lambda: KafkaSettings(bootstrap_servers="h:1", sasl_password=["canary"]),  # type: ignore[arg-type]
        lambda: RedisSettings(url="redis://h", password=["canary"]),  # type: ignore[arg-type]
    ],
)
def test_a_settings_class_does_not_repeat_what_is_wrong(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="validation error") as raised:
        make()
    assert SECRET not in f"{raised.value!s} {raised.value!r}"


@pytest.mark.parametrize(
    "text",
    [
        "GET https://h/x?access_token=canary says 401",
        "url: /hook?token=canary (Caused by Timeout)",
        "Authorization: Bearer canary",
        "{'sasl.username': 'u', 'sasl.password': 'canary', 'x': 1}",
        '{"password":"canary with spaces","x":1}',
        r"{\"password\":\"canary\"}",
        'PlainLoginModule required username="u" password="can\\"canary";',
        "ssl.key.password=canary",
        "ssl.truststore.password: canary",
        "LEFTFOLD_KAFKA_SASL_PASSWORD=canary,x leftfold run",
        "cannot reach u:canary@broker:9092, giving up",
        "postgres://app:it's/@canary@db/x refused",
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_errors_of_others_are_printed_and_logged_without_secrets(
    text: str, as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    try:
        raise OSError(text)
    except OSError as error:
        tell(error, whole=True)
        open_report("part", as_json=as_json, stream=stream)("failed", {"why": text, "exc_info": True})
    result = capfd.readouterr().err + stream.getvalue()
    assert SECRET not in result
    assert "***" in result
    assert not as_json or json.loads(stream.getvalue())["why"] == veiled(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://127.0.0.1:6379/0",
        "sasl_password: Input should be a valid string; sasl_username: Field required",
        "sasl_password is set but security_protocol=PLAINTEXT does not log in",
        "basket:1@v2 is parked: anna@example.org, a=b? c & d=e",
        "View@held of localhost:9092,localhost:9093",
        "unexpected token: a comma was there",
    ],
)
def test_what_is_no_secret_is_printed(text: str) -> None:
    assert veiled(text) == text


@pytest.mark.parametrize("part", ["/", "://"])
def test_a_veil_takes_time_in_proportion_to_the_text(part: str) -> None:
    """By plain patterns these take most of an hour each, and the watchdog ends the test."""
    text = part * (1_000_000 // len(part))
    assert len(veiled(text)) <= 2 * len(text)


def test_a_veil_is_not_much_longer_than_its_text() -> None:
    hostile = """
    ://@ password password=' ?a a:@ pwd\\ " & a ? a= @ # &a=. /? ://?&a=@# x?/y=. &a .
    """
    for part in [*hostile.split(), "bearer ", "password: "]:
        text = part * (100_000 // len(part))
        assert len(veiled(text)) <= 4 * len(text), part
