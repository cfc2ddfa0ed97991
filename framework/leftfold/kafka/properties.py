"""Reading a Confluent `client.properties`: the file that a cloud console offers for download."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from leftfold.errors import ConfigurationError

__all__ = ["read_properties"]

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
# Consoles write these into every file; what they say is fixed here or belongs to the schema registry.
_PASSED_OVER = re.compile(r"acks|session\.timeout\.ms|client\.dns\.lookup|schema\.registry\..+|basic\.auth\..+")
_LINE = re.compile(r"([^=:\s]+)\s*[=:]?\s*(.*)")
"""A name and a value, with `=`, `:` or a space between them, as java.util.Properties has it."""
_JAAS = re.compile(
    r"""\s*[\w.]*\.(?:Plain|Scram)LoginModule\s+required\s+
    username=(?P<u>["'])(?P<username>(?:\\.|(?!(?P=u)).)*)(?P=u)\s+
    password=(?P<p>["'])(?P<password>(?:\\.|(?!(?P=p)).)*)(?P=p)\s*;\s*""",
    re.VERBOSE,
)


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a file, by the names of our fields.

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
        elif not _PASSED_OVER.fullmatch(name):
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
