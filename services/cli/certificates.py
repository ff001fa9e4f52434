"""The bus's certificate authority and its server's certificate (X.509)."""

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 397
EARLIER_DAYS: Final = 1
"""Certificates hold from so long before they were made, for clocks that are behind."""
RENEWAL_SHARE: Final = 3
"""A server's certificate is renewed in the last third of its life."""


def new_authority(fleet: str, at: datetime) -> tuple[str, str]:
    """Make the certificate of a new authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"navarch {fleet} {at:%Y-%m-%d}")
    made = (
        _builder(name, name, key, at, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _text(made), _key_text(key)


def new_server_certificate(
    authority: str, authority_key: str, hosts: Sequence[str], at: datetime
) -> tuple[str, str]:
    """Make a server's certificate for these names and addresses, and its key."""
    issuer = x509.load_pem_x509_certificate(authority.encode())
    signer = load_pem_private_key(authority_key.encode(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise TypeError("the authority's key is no elliptic curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    # Servers of a cluster are each other's clients.
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _builder(_name("nats-server"), issuer.subject, key, at, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return _text(made), _key_text(key)


def is_current(certificate: str, authority: str, hosts: Sequence[str], at: datetime) -> bool:
    """Whether a server's certificate has these names, this authority, and time left. Pure."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    issuer = x509.load_pem_x509_certificate(authority.encode())
    try:
        found.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    life = found.not_valid_after_utc - found.not_valid_before_utc
    left = found.not_valid_after_utc - at
    return set(names) == {_host(each) for each in hosts} and left > life / RENEWAL_SHARE


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    at: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=EARLIER_DAYS))
        .not_valid_after(at + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
