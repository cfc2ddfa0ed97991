"""Embedded servers with TLS and logins: certificates, and a user with the least rights for each part of a service."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from leftfold.errors import ConfigurationError
from leftfold.local.files import write_whole
from leftfold.local.settings import HOST
from leftfold.model.rights import ADMIN, ROLES, redis_rules
from leftfold.version import install_command

__all__ = ["Secure", "make_secure", "secured"]


CA = "ca.pem"
"""The certificate of the authority, which clients trust."""
SERVER = "server.pem"
"""The servers' key and certificate, readable by their owner only."""

_LIFE = timedelta(days=365)
_RENEWED_BEFORE_END = timedelta(days=30)
_CLOCK_SKEW = timedelta(hours=1)


def ensure_certificates(directory: Path) -> None:
    """Makes `ca.pem` and `server.pem`, for loopback only, unless there are some that are valid for another month.

    Raises:
        ConfigurationError: cryptography is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise ConfigurationError(
            f"secure servers need cryptography, which is not installed; install it: {install_command('embedded')}"
        ) from error
    now = datetime.now(UTC)
    if (directory / SERVER).is_file() and (directory / CA).is_file():
        last = x509.load_pem_x509_certificate((directory / CA).read_bytes())
        if last.not_valid_after_utc - now > _RENEWED_BEFORE_END:
            return

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named("leftfold local authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFE)
        )

    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = (
        builder("leftfold local authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    server = (
        builder("leftfold local servers", own)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = serialization.Encoding.PEM
    # The authority's own key is not stored: it signs once.
    write_whole(directory / SERVER, (key + server.public_bytes(pem) + ca.public_bytes(pem)).decode())
    write_whole(directory / CA, ca.public_bytes(pem).decode())


_PRIVATE = 0o700
_USERS = "users.json"
_PASSWORD_BYTES = 24
_LISTENER = "SASL_SSL"


@dataclass(frozen=True)
class Secure:
    """The TLS files and logins of a data directory: `directory` and a password per role."""

    directory: Path
    passwords: Mapping[str, str] = field(repr=False)

    @property
    def ca(self) -> Path:
        """The certificate that clients trust."""
        return self.directory / CA

    @property
    def server(self) -> Path:
        """The key and certificate of the servers."""
        return self.directory / SERVER

    def login(self, role: str) -> dict[str, str]:
        """Login fields of `KafkaSettings` for a role, without the brokers."""
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": role,
            "sasl_password": self.passwords[role],
            "ssl_ca_location": str(self.ca),
        }

    def librdkafka(self) -> dict[str, str]:
        """The login of the admin as librdkafka properties."""
        return {field.replace("_", "."): value for field, value in self.login(ADMIN).items()}

    def broker(self) -> dict[str, str]:
        """Lines of `server.properties`: every listener requires a login, and a user without an ACL has no rights."""
        everybody = "".join(f" user_{role}={_quoted(password)}" for role, password in self.passwords.items())
        admin = f"username={ADMIN} password={_quoted(self.passwords[ADMIN])}"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = {_LISTENER.lower(): everybody, "controller": f" user_{ADMIN}={_quoted(self.passwords[ADMIN])}"}
        logins = {
            f"listener.name.{listener}.plain.sasl.jaas.config": f"{module} {admin}{known};"
            for listener, known in users.items()
        }
        return {
            "inter.broker.listener.name": _LISTENER,
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            **logins,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
        }

    def redis_users(self) -> str:
        """Lines of `redis.conf`: the users and their rights."""
        lines = ["user default off"]
        for role, password in self.passwords.items():
            digest = hashlib.sha256(password.encode()).hexdigest()
            lines.append(f"user {role} on #{digest} {redis_rules([role])}")
        return "".join(f"{line}\n" for line in lines)

    def tell(self, kafka: str, redis: str) -> None:
        """Writes `{role}.env` for every role: the environment variables of that part, for a shell to read."""
        for role, password in self.passwords.items():
            env: dict[str, str] = {}
            if kafka:
                env["LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS"] = kafka
                env |= {f"LEFTFOLD_KAFKA_{name.upper()}": value for name, value in self.login(role).items()}
            if redis:
                env["LEFTFOLD_REDIS_URL"] = f"rediss://{role}@{redis.rpartition('@')[2]}"
                env |= {"LEFTFOLD_REDIS_PASSWORD": password, "LEFTFOLD_REDIS_CA_FILE": str(self.ca)}
            lines = (f"{name}={shlex.quote(value)}\n" for name, value in env.items())
            write_whole(self.directory / f"{role}.env", "".join(lines))


def secured(data: Path) -> Secure | None:
    """The TLS files and logins in a data directory; None when its servers require no login."""
    directory = data / "secure"
    if not (directory / _USERS).is_file():
        return None
    return Secure(directory, json.loads((directory / _USERS).read_text("utf-8")))


def make_secure(data: Path) -> Secure:
    """Makes the users, passwords and certificates that are missing in a data directory.

    Raises:
        ConfigurationError: cryptography is not installed.
    """
    known = secured(data)
    directory = data / "secure"
    directory.mkdir(mode=_PRIVATE, exist_ok=True)
    ensure_certificates(directory)
    passwords = dict(known.passwords) if known is not None else {}
    for role in (ADMIN, *ROLES):
        # Letters and digits only: they go into files of several syntaxes.
        passwords.setdefault(role, secrets.token_hex(_PASSWORD_BYTES))
    write_whole(directory / _USERS, json.dumps(passwords, indent=2) + "\n")
    return Secure(directory, passwords)


def _quoted(text: str) -> str:
    return f'"{text}"'
