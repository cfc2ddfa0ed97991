"""Settings for TLS without TLS are refused: the network would read what was meant to be hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings


@pytest.mark.parametrize("sasl", [False, True])
@pytest.mark.parametrize(
    "name",
    ["ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password"],
)
def test_ssl_settings_need_a_protocol_with_tls(name: str, sasl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"} if sasl else {}
    protocol = "SASL_PLAINTEXT" if sasl else "PLAINTEXT"
    both = ("ssl_certificate_location", "ssl_key_location")
    for one in both if name in both else (name,):
        monkeypatch.setenv(f"LEFTFOLD_KAFKA_{one.upper()}", "/x")
    with pytest.raises(ConfigurationError, match=rf"ssl_\w+ is set but security_protocol={protocol} does not encrypt"):
        KafkaSettings.model_validate({"bootstrap_servers": "h:1", "security_protocol": protocol, **login})


def test_how_names_are_checked_needs_tls_too() -> None:
    with pytest.raises(ConfigurationError, match="does not encrypt; use SSL, or"):
        KafkaSettings(bootstrap_servers="h:1", ssl_endpoint_identification_algorithm="https")


def test_certificates_of_a_redis_need_rediss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_REDIS_CA_FILE", "/x")
    for url in ("redis://h", "redis+cluster://h", "redis+sentinel://h/s", "unix:///s"):
        with pytest.raises(ConfigurationError, match="does not encrypt; begin it with rediss"):
            RedisSettings(url=url)
    assert RedisSettings(url="rediss://h").ca_file == Path("/x")
