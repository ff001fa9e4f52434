"""Finds how a Kubernetes cluster is reached: by a kubeconfig, or the pod's service account.

kubernetes-asyncio reads both, and logs in: by token, certificate, OIDC or a program (`exec`). It is
loaded only where there is a cluster: that takes a second and 100 MB.
"""

import asyncio
import ssl
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secret
from services.settings.yaml_document import read_document

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
MALFORMED: Final = (AssertionError, AttributeError, KeyError, OSError, TypeError, ValueError)
"""What the library raises for logins of another form than it expects, besides its own error."""
SAFE: Final = ("https://", "http://127.0.0.1:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Names a kubeconfig's context, or a server and its token, or the pod's service account."""

    kubeconfig: str = ""
    context: str = ""
    """Empty: the kubeconfig's current one."""
    server: str = ""
    token: str = ""
    ca_file: str = ""
    """Of `server`; empty: the host's own authorities."""

    def check_place(self) -> None:
        """ConfigurationError where there is nothing to read: no package, no file, no pod."""
        if find_spec("kubernetes_asyncio") is None:
            raise ConfigurationError("a package is missing: pip install 'navarch[kubernetes]'")
        if self.kubeconfig and not Path(self.kubeconfig).is_file():
            raise ConfigurationError(f"there is no file {self.kubeconfig}", key="kubeconfig")
        if not (self.kubeconfig or self.server or SERVICE_ACCOUNT.is_file()):
            raise ConfigurationError(
                "this process runs in no pod, so it has no service account; set `kubeconfig: FILE`",
                key="kubeconfig",
            )

    def check(self) -> None:
        """ConfigurationError where a login could not work, or would be sent to any server."""
        self.check_place()
        if not (self.kubeconfig or self.server):
            return
        document = self._document()
        wanted = self._loader(document).current_context["context"]["cluster"]
        [cluster] = [each["cluster"] for each in document["clusters"] if each["name"] == wanted]
        if not str(cluster.get("server")).startswith(SAFE):
            raise self._error(f"{cluster.get('server')!r} is not an https:// address")
        if cluster.get("insecure-skip-tls-verify"):
            raise self._error("sets insecure-skip-tls-verify, which is not supported")
        if self.ca_file:
            try:
                ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise self._error("the certificate authority cannot be read") from error

    async def connect(self) -> Any:
        """Log in, and return the library's connection; ConfigurationError where that fails."""
        # In a thread, because the other orders of this process go on.
        client = await asyncio.to_thread(import_module, "kubernetes_asyncio.client")
        config = await asyncio.to_thread(import_module, "kubernetes_asyncio.config")
        configuration = client.Configuration()
        try:
            if self.kubeconfig or self.server:
                await self._loader(self._document()).load_and_set(configuration)
            else:
                config.load_incluster_config(client_configuration=configuration)
            # Of a file with a line break the library makes a header with one.
            if header := configuration.api_key.get("BearerToken", "").strip():
                configuration.api_key["BearerToken"] = header
                register_secret(header.rpartition(" ")[2])
            return client.ApiClient(configuration=configuration)
        except (config.ConfigException, *MALFORMED) as error:
            raise self._error(f"no login: {error}") from error

    def _error(self, problem: str) -> ConfigurationError:
        return ConfigurationError(problem, key=self.kubeconfig or self.server or "kubeconfig")

    def _document(self) -> Any:
        """The kubeconfig, or what one would say of the server."""
        if self.kubeconfig:
            text = Path(self.kubeconfig).read_text(encoding="utf-8")
            return read_document(self.kubeconfig, text).value
        authority = {"certificate-authority": self.ca_file} if self.ca_file else {}
        return {
            "clusters": [{"name": "c", "cluster": {"server": self.server} | authority}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def _loader(self, document: Any) -> Any:
        config = import_module("kubernetes_asyncio.config.kube_config")
        base = str(Path(self.kubeconfig).parent) if self.kubeconfig else ""
        try:
            return config.KubeConfigLoader(
                document, active_context=self.context or None, config_base_path=base
            )
        except (config.ConfigException, *MALFORMED) as error:
            raise self._error(f"is not a kubeconfig that can be used: {error}") from error
