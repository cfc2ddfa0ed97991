"""Settings for Kafka: said once, rendered for librdkafka and for Java, and never showing a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from pydantic import SecretStr, ValidationError

from leftfold.errors import ConfigurationError, ContractError, Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.errors import Unreachable, translated
from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings

SECRET = 'pass"word\\with=signs'

CONFLUENT = f"""
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=pkc-1.cloud:9092
security.protocol=SASL_SSL
sasl.mechanisms=PLAIN
sasl.username=KEY
sasl.password={SECRET}

# Best practice for higher availability in librdkafka clients prior to 1.7
session.timeout.ms=45000
client.id=ccloud-python-client
schema.registry.url=https://psrc-1.cloud
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=a:b
"""
JAVA = """
bootstrap.servers=pkc-1.cloud:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='KEY' password='S3cret';
sasl.mechanism=PLAIN
client.dns.lookup=use_all_dns_ips
acks=all
"""


def write(tmp_path: Path, text: str) -> Path:
    """A properties file."""
    path = tmp_path / "client.properties"
    path.write_text(text, "utf-8")
    return path


def test_a_plain_broker_needs_only_its_address() -> None:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:9092")
    assert settings.librdkafka() == {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "PLAINTEXT",
        "client.id": "leftfold",
    }
    assert settings.java() == settings.librdkafka()


def test_a_missing_address_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port.*leftfold up"):
        KafkaSettings()


def test_a_confluent_file_is_taken_as_it_is(tmp_path: Path) -> None:
    settings = KafkaSettings(properties=write(tmp_path, CONFLUENT))
    rendered = settings.librdkafka()
    assert rendered["sasl.password"] == SECRET
    assert (rendered["bootstrap.servers"], rendered["sasl.mechanism"]) == ("pkc-1.cloud:9092", "PLAIN")
    assert rendered["client.id"] == "ccloud-python-client"
    Producer(rendered)
    Consumer({**rendered, "group.id": "g"}).close()


def test_a_java_file_is_taken_as_it_is_and_the_login_for_java_survives_the_round_trip(tmp_path: Path) -> None:
    rendered = KafkaSettings(properties=write(tmp_path, JAVA)).librdkafka()
    assert (rendered["sasl.username"], rendered["sasl.password"]) == ("KEY", "S3cret")
    java = KafkaSettings(properties=write(tmp_path, CONFLUENT)).java()
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="KEY" password="pass\\"word\\\\with=signs";'
    )
    text = "\n".join(f"{name}={value}" for name, value in java.items())
    assert KafkaSettings(properties=write(tmp_path, text)).librdkafka()["sasl.password"] == SECRET


def test_scram_has_its_own_login_module() -> None:
    settings = KafkaSettings(
        bootstrap_servers="b:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="u",
        sasl_password=SecretStr("p"),
    )
    assert "security.scram.ScramLoginModule required" in settings.java()["sasl.jaas.config"]
    assert settings.java()["sasl.mechanism"] == "SCRAM-SHA-512"


def test_certificates_are_rendered_for_both(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"{name} pem", "utf-8")
    settings = KafkaSettings(
        bootstrap_servers="b:1",
        security_protocol="SSL",
        ssl_ca_location=tmp_path / "ca",
        ssl_certificate_location=tmp_path / "cert",
        ssl_key_location=tmp_path / "key",
        ssl_key_password=SecretStr("p"),
    )
    assert settings.librdkafka()["ssl.key.location"] == str(tmp_path / "key")
    java = settings.java()
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", str(tmp_path / "ca"))
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == ("cert pem", "key pem")
    assert java["ssl.endpoint.identification.algorithm"] == "https"


def test_arguments_win_over_the_environment_which_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_CLIENT_ID", "from-environment")
    monkeypatch.setenv("LEFTFOLD_KAFKA_SASL_USERNAME", "from-environment")
    monkeypatch.setenv("LEFTFOLD_KAFKA_PROPERTIES", str(write(tmp_path, CONFLUENT)))
    settings = KafkaSettings(client_id="from-argument")
    assert (settings.client_id, settings.sasl_username) == ("from-argument", "from-environment")
    assert settings.bootstrap_servers == "pkc-1.cloud:9092"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sasl.pasword=x", r"client\.properties:2: unknown .* 'sasl\.pasword'; did you mean sasl\.password\?"),
        ("enable.idempotence=false", r"'enable\.idempotence'"),
        ("ssl.truststore.location=x.jks", r"ssl\.truststore\.location is Java's alone; .* PEM"),
        ("sasl.jaas.config=com.evil.Module required;", r"sasl\.jaas\.config is not of the form"),
    ],
)
def test_an_unknown_property_is_named_but_not_its_value(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, f"bootstrap.servers=b:1\n{line}")
    with pytest.raises(ConfigurationError, match=message) as caught:
        KafkaSettings(properties=path)
    assert line.partition("=")[2] not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        KafkaSettings(properties=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"sasl_username": "u"}, "does not log in"),
        ({"ssl_key_location": "k"}, "belong together"),
    ],
)
def test_half_a_login_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KafkaSettings.model_validate({"bootstrap_servers": "b:1", **given})


def test_no_secret_is_ever_shown(tmp_path: Path) -> None:
    settings = KafkaSettings(properties=write(tmp_path, CONFLUENT))
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert SECRET not in shown
    assert "pass" not in shown.replace("sasl_password", "").replace("ssl_key_password", "")
    with pytest.raises(ValidationError) as caught:
        KafkaSettings.model_validate({"bootstrap_servers": "b:1", "sasl_password": [SECRET]})
    assert "word" not in str(caught.value).replace("sasl_password", "")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (KafkaError._FENCED, Fenced),
        (KafkaError.INVALID_PRODUCER_EPOCH, Fenced),
        (KafkaError._ALL_BROKERS_DOWN, Unreachable),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, InfrastructureError),
        (KafkaError.MSG_SIZE_TOO_LARGE, ContractError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, ConfigurationError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError),
        (KafkaError.NOT_LEADER_FOR_PARTITION, InfrastructureError),
    ],
)
def test_broker_errors_become_ours(code: int, wanted: type[LeftfoldError]) -> None:
    for error in (KafkaError(code), KafkaException(KafkaError(code))):
        ours = translated(error, doing="reading x.events")
        assert type(ours) is wanted
        assert "reading x.events" in str(ours)


@pytest.mark.parametrize("sasl", [False, True])
@pytest.mark.parametrize(
    "name", ["ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password"]
)
def test_ssl_settings_need_a_protocol_with_tls(name: str, sasl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"} if sasl else {}
    protocol = "SASL_PLAINTEXT" if sasl else "PLAINTEXT"
    both = ("ssl_certificate_location", "ssl_key_location")
    for one in both if name in both else (name,):
        monkeypatch.setenv(f"LEFTFOLD_KAFKA_{one.upper()}", "/x")
    with pytest.raises(ConfigurationError, match=rf"ssl_\w+ is set but security_protocol={protocol} does not encrypt"):
        KafkaSettings.model_validate({"bootstrap_servers": "h:1", "security_protocol": protocol, **login})


def test_the_check_of_host_names_needs_tls() -> None:
    with pytest.raises(ConfigurationError, match="does not encrypt; use SSL, or"):
        KafkaSettings(bootstrap_servers="h:1", ssl_endpoint_identification_algorithm="https")


def test_certificates_of_a_redis_need_rediss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_REDIS_CA_FILE", "/x")
    for url in ("redis://h", "redis+cluster://h", "redis+sentinel://h/s", "unix:///s"):
        with pytest.raises(ConfigurationError, match="does not encrypt; begin it with rediss"):
            RedisSettings(url=url)
    assert RedisSettings(url="rediss://h").ca_file == Path("/x")
