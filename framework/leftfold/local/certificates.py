"""Certificates of the embedded servers: an authority of the data directory's own, and what it has signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from leftfold.errors import ConfigurationError
from leftfold.local.files import write_whole
from leftfold.local.ports import HOST

__all__ = ["CA", "SERVER", "ensure_certificates"]

CA = "ca.pem"
"""The authority's certificate: what clients trust."""
SERVER = "server.pem"
"""The servers' key and certificate, for their owner alone."""

_LIFE = timedelta(days=365)
_RENEWED_BEFORE_END = timedelta(days=30)
_CLOCK_SKEW = timedelta(hours=1)


def ensure_certificates(directory: Path) -> None:
    """Makes `ca.pem` and `server.pem`, for loopback only, unless there are some that last for a month to come.

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
            "secure servers need cryptography, which is not installed; install it: pip install 'leftfold[embedded]'"
        ) from error
    now = datetime.now(UTC)
    if (directory / SERVER).is_file() and (directory / CA).is_file():
        last = x509.load_pem_x509_certificate((directory / CA).read_bytes())
        if last.not_valid_after_utc - now > _RENEWED_BEFORE_END:
            return

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
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
        begun("leftfold local authority", authority)
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
        begun("leftfold local servers", own)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    pem = serialization.Encoding.PEM
    # The authority's own key is kept nowhere: it signs once.
    write_whole(directory / SERVER, (key + server.public_bytes(pem) + ca.public_bytes(pem)).decode())
    write_whole(directory / CA, ca.public_bytes(pem).decode())
