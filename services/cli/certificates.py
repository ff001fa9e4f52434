"""Makes certificates of the bus: its authority's, its server's and its clients' (X.509). Pure."""

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
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
CERTIFICATE_DAYS: Final = 397
EARLIER_DAYS: Final = 1
"""Certificates hold from so long before they were made, for clocks that are behind."""
RENEWAL_SHARE: Final = 3
"""A server's certificate is renewed in the last third of its life."""


def new_key() -> str:
    """Make a key."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def new_authority(fleet: str, key: str, at: datetime) -> str:
    """Make the certificate of a new authority with this key."""
    signer = _signer(key)
    name = _name(f"navarch {fleet} {at:%Y-%m-%d %H:%M:%S}")
    made = (
        _builder(name, name, signer, at, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signer, hashes.SHA256())
    )
    return _text(made)


def new_certificate(
    authority: str,
    authority_key: str,
    name: str,
    hosts: Sequence[str],
    at: datetime,
    *,
    days: int = CERTIFICATE_DAYS,
) -> str:
    """Make a certificate and its key: a server's for these names and addresses, else a client's."""
    issuer = x509.load_pem_x509_certificate(authority.encode())
    signer, text = _signer(authority_key), new_key()
    # Servers of a cluster are each other's clients.
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] if hosts else []
    builder = (
        _builder(_name(name), issuer.subject, _signer(text), at, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([*purposes, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        builder = builder.add_extension(names, critical=False)
    return _text(builder.sign(signer, hashes.SHA256())) + text


def authority_of(key: str, accepted: str) -> str:
    """The certificate of a key among those in a file; empty if there is none. Pure."""
    public = _signer(key).public_key()
    found = x509.load_pem_x509_certificates(accepted.encode()) if accepted else []
    return "".join(_text(each) for each in found if each.public_key() == public)


def count(accepted: str) -> int:
    """Return how many certificates a file has. Pure."""
    return len(x509.load_pem_x509_certificates(accepted.encode()))


def is_issued_by(certificate: str, accepted: str) -> bool:
    """Return whether one of the authorities in a file has signed a certificate. Pure."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    for issuer in x509.load_pem_x509_certificates(accepted.encode()):
        with suppress(ValueError, TypeError, InvalidSignature):
            found.verify_directly_issued_by(issuer)
            return True
    return False


def hosts_of(certificate: str) -> list[str]:
    """Return the names and addresses of a server's certificate. Pure."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


def is_current(certificate: str, accepted: str, hosts: Sequence[str], at: datetime) -> bool:
    """Return whether a server's certificate has these names, an accepted authority, and time.

    Pure.
    """
    found = x509.load_pem_x509_certificate(certificate.encode())
    life = found.not_valid_after_utc - found.not_valid_before_utc
    left = found.not_valid_after_utc - at
    same = set(hosts_of(certificate)) == set(hosts)
    return same and is_issued_by(certificate, accepted) and left > life / RENEWAL_SHARE


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


def _signer(key: str) -> ec.EllipticCurvePrivateKey:
    found = load_pem_private_key(key.encode(), None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise TypeError("the key is no elliptic curve key")
    return found
