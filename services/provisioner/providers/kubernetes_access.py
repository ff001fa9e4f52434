"""Access to a Kubernetes API: its address, certificate authority and bearer token.

From a kubeconfig file, from settings, or from the service account of the pod. Of a kubeconfig's
login methods only a token is supported; the others need programs or keys that this service does not
have.
"""

import base64
import binascii
import os
import ssl
from pathlib import Path
from typing import Final

import msgspec

from schemas.secret_text import SecretText
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secrets
from services.provisioner.providers.provider_secret import read_secret, read_text
from services.settings.yaml_document import read_document


class ClusterAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests are sent, and how they are authorized."""

    server: str
    token: SecretText
    authority: str = ""
    """In PEM; empty: the host's own authorities."""
    renewed_token_file: str = ""
    """File with the token that is valid now; empty: it does not change."""

    def current_token(self) -> str:
        """Return the token for a request."""
        if not self.renewed_token_file:
            return self.token
        token = read_text(self.renewed_token_file, "service account").strip()
        register_secrets(msgspec.structs.replace(self, token=token))
        return token

    def verify(self) -> ssl.SSLContext | bool:
        """Return what httpx must trust."""
        return ssl.create_default_context(cadata=self.authority) if self.authority else True


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False


class _User(msgspec.Struct, frozen=True):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context


class _Kubeconfig(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: tuple[_NamedCluster, ...] = ()
    users: tuple[_NamedUser, ...] = ()
    contexts: tuple[_NamedContext, ...] = ()
    current_context: str = ""


LOGIN: Final = (
    "has no token, the only supported login of a kubeconfig: download one with a token, or set "
    "server and token_env"
)


SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_pod(name: str, folder: Path = SERVICE_ACCOUNT) -> ClusterAccess:
    """Return the access of the service account of the pod in which this process runs."""
    where = f"providers.{name}"
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    token = folder / "token"
    if not host or not token.is_file():
        raise ConfigurationError(
            "the provisioner runs in no pod, so it has no service account; set `kubeconfig: FILE`",
            key=f"{where}.kubeconfig",
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    access = ClusterAccess(
        server=server,
        token=read_text(str(token), where).strip(),
        authority=read_text(str(folder / "ca.crt"), where),
        renewed_token_file=str(token),
    )
    return _check(access, where)


def by_settings(
    name: str, *, server: str, token_env: str, token_file: str, ca_file: str
) -> ClusterAccess:
    """Return the access that settings describe."""
    where = f"providers.{name}"
    token = read_secret(name, "token", "an API token", env=token_env, file=token_file)
    authority = read_text(ca_file, f"{where}.ca_file") if ca_file else ""
    return _check(ClusterAccess(server=server, token=token, authority=authority), where)


def by_kubeconfig(name: str, file: str, context: str) -> ClusterAccess:
    """Return the access of a kubeconfig's context; empty: its current one."""
    where = f"providers.{name}.kubeconfig"
    text = read_text(file, where)
    try:
        read = msgspec.convert(read_document(file, text).value, _Kubeconfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{file} is not a kubeconfig: {error}", key=where) from error
    wanted = context or read.current_context
    chosen = {each.name: each.context for each in read.contexts}.get(wanted)
    if chosen is None:
        known = ", ".join(each.name for each in read.contexts) or "none"
        problem = f"{file} has no context {wanted!r} (known: {known})"
        raise ConfigurationError(problem, key=where)
    cluster = {each.name: each.cluster for each in read.clusters}.get(chosen.cluster)
    user = {each.name: each.user for each in read.users}.get(chosen.user)
    if cluster is None or user is None:
        problem = f"context {wanted!r} names a cluster or user that is not in {file}"
        raise ConfigurationError(problem, key=where)
    if cluster.insecure_skip_tls_verify:
        problem = f"{file} sets insecure-skip-tls-verify, which is not supported"
        raise ConfigurationError(problem, key=where)
    folder = Path(file).parent
    token = user.token
    if not token and user.token_file:
        token = read_text(str(folder / user.token_file), where).strip()
    if not token:
        raise ConfigurationError(f"user {chosen.user!r} {LOGIN}", key=where)
    authority = ""
    if cluster.certificate_authority_data:
        authority = _decode(cluster.certificate_authority_data, where)
    elif cluster.certificate_authority:
        authority = read_text(str(folder / cluster.certificate_authority), where)
    return _check(ClusterAccess(server=cluster.server, token=token, authority=authority), where)


def _check(access: ClusterAccess, where: str) -> ClusterAccess:
    if not access.server.startswith(("https://", "http://127.0.0.1:")):
        raise ConfigurationError(f"{access.server!r} is not an https:// address", key=where)
    try:
        access.verify()
    except ssl.SSLError as error:
        raise ConfigurationError("the certificate authority cannot be read", key=where) from error
    register_secrets(access)
    return access


def _decode(data: str, where: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigurationError("certificate-authority-data is not base64", key=where) from error
