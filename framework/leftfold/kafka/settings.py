"""The settings of a Kafka connection, rendered for librdkafka, Java and aiokafka clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from leftfold.errors import ConfigurationError

__all__ = ["KafkaSettings"]


_FIELDS = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
    "ssl.ca.location": "ssl_ca_location",
    "ssl.certificate.location": "ssl_certificate_location",
    "ssl.key.location": "ssl_key_location",
    "ssl.key.password": "ssl_key_password",
    "ssl.endpoint.identification.algorithm": "ssl_endpoint_identification_algorithm",
    "client.id": "client_id",
}
# Cloud consoles write these into every file; Leftfold sets them itself, or they belong to the schema registry.
_IGNORED = re.compile(r"acks|session\.timeout\.ms|client\.dns\.lookup|schema\.registry\..+|basic\.auth\..+")
_LINE = re.compile(r"([^=:\s]+)\s*[=:]?\s*(.*)")
"""A name and a value, separated by `=`, `:` or a space, as in java.util.Properties."""
_JAAS = re.compile(
    r"""\s*[\w.]*\.(?:Plain|Scram)LoginModule\s+required\s+
    username=(?P<u>["'])(?P<username>(?:\\.|(?!(?P=u)).)*)(?P=u)\s+
    password=(?P<p>["'])(?P<password>(?:\\.|(?!(?P=p)).)*)(?P=p)\s*;\s*""",
    re.VERBOSE,
)


def read_properties(path: Path) -> dict[str, str]:
    """Reads a properties file; returns its settings by the field names of KafkaSettings.

    Raises:
        ConfigurationError: the file cannot be read, or a property in it is unknown; its value is never shown.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"properties={str(path)!r} cannot be read: {error}") from error
    fields: dict[str, str] = {}
    for number, name, value in _lines(text):
        where = f"{path}:{number}"
        if name == "sasl.jaas.config":
            fields |= _login(value, where)
        elif name in _FIELDS:
            fields[_FIELDS[name]] = value
        elif not _IGNORED.fullmatch(name):
            raise ConfigurationError(f"{where}: {_unknown(name)}")
    if "security_protocol" in fields:
        fields["security_protocol"] = fields["security_protocol"].upper()
    if fields.get("ssl_endpoint_identification_algorithm") == "":
        fields["ssl_endpoint_identification_algorithm"] = "none"
    return fields


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line.strip())
        if found is not None and not line.lstrip().startswith(("#", "!")):
            yield number, found[1], found[2]


def _login(value: str, where: str) -> dict[str, str]:
    found = _JAAS.fullmatch(value)
    if found is None:
        raise ConfigurationError(
            f"{where}: sasl.jaas.config is not of the form `...PlainLoginModule required username='...' "
            f"password='...';`; use sasl.username and sasl.password instead"
        )
    return {f"sasl_{name}": re.sub(r"\\(.)", r"\1", found[name]) for name in ("username", "password")}


def _unknown(name: str) -> str:
    if name.startswith(("ssl.truststore.", "ssl.keystore.")):
        return (
            f"{name} is Java's alone; set ssl.ca.location, ssl.certificate.location and ssl.key.location to PEM files"
        )
    if "." not in name or not re.fullmatch(r"[\w.-]+", name):
        return "this line begins with no property's name; a value must be on one line with its name"
    near = get_close_matches(name, [*_FIELDS, "sasl.jaas.config"], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_FIELDS))}, sasl.jaas.config"
    return f"unknown or unsupported property {name!r}{hint}"


Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
_LOGIN = {"PLAIN": "plain.PlainLoginModule"}
_SCRAM = "scram.ScramLoginModule"


class KafkaSettings(BaseSettings):
    """The addresses and login of a Kafka cluster.

    Arguments override environment variables, which override `properties`.

    Args:
        bootstrap_servers: `host:port,host:port`.
        properties: path of a Confluent `client.properties`, unchanged, in librdkafka's or Java's spelling.
        security_protocol, sasl_*, ssl_*: as the properties of these names; files are PEM.
        client_id: the name of this client in the logs and quotas of brokers.
        replication_factor: of topics that Leftfold creates; by default the number of brokers, 3 at most.
        request_timeout: seconds after which a broker that does not answer counts as unreachable.
        advice: the hint in messages when no broker answers; it depends on how the brokers are started.

    Raises:
        ConfigurationError: no server is named, or a property is unknown or cannot be rendered for every library.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_KAFKA_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    bootstrap_servers: str = ""
    properties: Path | None = None
    security_protocol: Protocol = "PLAINTEXT"
    sasl_mechanism: Mechanism | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: Path | None = None
    ssl_certificate_location: Path | None = None
    ssl_key_location: Path | None = None
    ssl_key_password: SecretStr | None = None
    ssl_endpoint_identification_algorithm: Literal["https", "none"] = "https"
    client_id: str = "leftfold"
    replication_factor: int | None = Field(default=None, ge=1)
    request_timeout: float = Field(default=5.0, gt=0)
    advice: str = "is the address right, and does it run?"

    @model_validator(mode="before")
    @classmethod
    def _with_properties(cls, given: dict[str, Any]) -> dict[str, Any]:
        path = given.get("properties")
        found = {**read_properties(Path(path)), **given} if path else given
        if not found.get("bootstrap_servers"):
            raise ConfigurationError(
                f"{path or 'the settings'} name no Kafka broker; set LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS=host:port, "
                f"or start one here: leftfold up"
            )
        if "@" in str(found["bootstrap_servers"]):
            raise ConfigurationError(
                "bootstrap_servers takes host:port without a login; set LEFTFOLD_KAFKA_SASL_USERNAME and "
                "LEFTFOLD_KAFKA_SASL_PASSWORD"
            )
        return found

    @model_validator(mode="after")
    def _complete(self) -> KafkaSettings:
        sasl = self.security_protocol.startswith("SASL_")
        login = {
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_username": self.sasl_username,
            "sasl_password": self.sasl_password,
        }
        for name, value in login.items():
            if sasl and not value:
                raise ConfigurationError(f"security_protocol={self.security_protocol} needs {name}")
            if not sasl and value:
                raise ConfigurationError(
                    f"{name} is set but security_protocol={self.security_protocol} does not log in; "
                    f"use SASL_SSL, or SASL_PLAINTEXT if the network may read the password"
                )
        if bool(self.ssl_certificate_location) != bool(self.ssl_key_location):
            raise ConfigurationError("ssl_certificate_location and ssl_key_location belong together; set both")
        if "SSL" not in self.security_protocol:
            for name in sorted(self.model_fields_set):
                if name.startswith("ssl_") and getattr(self, name) is not None:
                    raise ConfigurationError(
                        f"{name} is set but security_protocol={self.security_protocol} does not encrypt; use "
                        f"{'SASL_SSL' if sasl else 'SSL'}, or leave {name} out if the network may read everything"
                    )
        return self

    def librdkafka(self) -> dict[str, Any]:
        """The configuration of a confluent-kafka client; it contains the password, so never log it."""
        config = {name: _plain(getattr(self, field)) for name, field in _FIELDS.items() if name != "sasl.mechanisms"}
        if "SSL" not in self.security_protocol:
            del config["ssl.endpoint.identification.algorithm"]
        return {name: value for name, value in config.items() if value is not None}

    def java(self) -> dict[str, str]:
        """The configuration of a Java client, such as Spark's connector (its options want the prefix `kafka.`)."""
        config = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "client.id": self.client_id,
        }
        if self.sasl_mechanism is not None:
            config["sasl.mechanism"] = self.sasl_mechanism
            config["sasl.jaas.config"] = self._jaas()
        if "SSL" in self.security_protocol:
            config.update(self._java_ssl())
        return config

    def aiokafka(self) -> dict[str, Any]:
        """The configuration of an aiokafka client; it contains the password, so never log it."""
        config: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
            "client_id": self.client_id,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": _plain(self.sasl_password),
            "ssl_context": self._ssl_context() if "SSL" in self.security_protocol.split("_")[-1] else None,
        }
        return {name: value for name, value in config.items() if value is not None}

    def _ssl_context(self) -> SSLContext:
        context = create_default_context(cafile=_plain(self.ssl_ca_location))
        context.check_hostname = self.ssl_endpoint_identification_algorithm == "https"
        if self.ssl_certificate_location is not None and self.ssl_key_location is not None:
            context.load_cert_chain(self.ssl_certificate_location, self.ssl_key_location, _plain(self.ssl_key_password))
        return context

    def _jaas(self) -> str:
        module = _LOGIN.get(self.sasl_mechanism or "", _SCRAM)
        user, password = _quoted(self.sasl_username or ""), _quoted(_plain(self.sasl_password) or "")
        return f"org.apache.kafka.common.security.{module} required username={user} password={password};"

    def _java_ssl(self) -> dict[str, str]:
        """PEM settings for Java clients (KIP-651): the CA file by path, certificate and PKCS#8 key by content."""
        algorithm = self.ssl_endpoint_identification_algorithm
        config: dict[str, str] = {"ssl.endpoint.identification.algorithm": "" if algorithm == "none" else algorithm}
        if self.ssl_ca_location is not None:
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ssl_ca_location)}
        if self.ssl_certificate_location is not None and self.ssl_key_location is not None:
            config["ssl.keystore.type"] = "PEM"
            config["ssl.keystore.certificate.chain"] = self.ssl_certificate_location.read_text("utf-8")
            config["ssl.keystore.key"] = self.ssl_key_location.read_text("utf-8")
        if self.ssl_key_password is not None:
            config["ssl.key.password"] = self.ssl_key_password.get_secret_value()
        return config


def _plain(value: str | Path | SecretStr | None) -> str | None:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return None if value is None else str(value)


def _quoted(text: str) -> str:
    """Quotes a value for a JAAS line, in which java.io.StreamTokenizer reads backslash escapes in double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
