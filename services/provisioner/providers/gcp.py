"""Google Compute Engine: instances of one project.

An instance has its node's name, which is unique in its project and zone; so a repeated launch
adopts the existing instance. An accepted launch can still fail: its operation is read to the end.
Spot instances are deleted, not stopped, when they are reclaimed, and disks with their instances;
otherwise both would keep costing money.
"""

import re
import uuid
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import FLEET_TAG, tags_of, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    HostReport,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.gcp_auth import token_source
from services.provisioner.providers.gcp_errors import error_of, operation_error
from services.provisioner.providers.gcp_reports import upcoming_maintenance
from services.provisioner.providers.provider_http import read_body, send
from services.provisioner.providers.request_checks import check_labels, invalid
from services.runtime.bounded_http import bounded_client

NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")
PAGE: Final = 500
IMAGE_X86: Final = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
IMAGE_ARM: Final = "ubuntu-accelerator-2404-arm64-with-nvidia-570"
ARM_TYPES: Final = "a4x-"
TRIES_MAX: Final = 3
"""Attempts of one launch whose instance is removed meanwhile."""

STATUSES: Final[dict[str, InstanceStatus]] = {
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "PENDING": "pending",
    "RUNNING": "running",
    "REPAIRING": "running",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "SUSPENDING": "stopping",
    "DEPROVISIONING": "stopping",
    "STOPPED": "stopped",
    "SUSPENDED": "stopped",
    "TERMINATED": "stopped",
}
"""Google's status -> ours; TERMINATED there means stopped, with a disk that costs."""


class GcpProvider:
    """Instances of one project."""

    class Options(Setting, frozen=True, kw_only=True):
        """`providers: {gcp: {type: gcp, project: my-project, image: …}}`."""

        project: str
        """Id of the project that pays for the nodes."""
        image: str = ""
        """Image or image family: `projects/my-project/global/images/family/gpu-node`. Empty:
        Google's Ubuntu with the NVIDIA driver, which lacks the agent: see `user_data`."""
        credentials_file: FilePath = ""
        """A service account's key; empty: the metadata server of the machine this runs on."""
        market: Literal["on-demand", "spot"] = "on-demand"
        """The market of pools that name none."""
        network: str = "global/networks/default"
        """Network of the nodes."""
        subnetwork: str = ""
        """Subnetwork of the nodes; empty: Google chooses by network and region."""
        public_address: bool = True
        """Whether nodes get a public address."""
        service_account: str = ""
        """That the node itself runs as; empty: none."""
        root_gb: Annotated[int, msgspec.Meta(ge=10, le=65_536)] = 100
        """Size of the root disk, in GB."""
        max_run: Duration = Duration(0)
        """After this Google itself deletes the instance; 0s: never."""
        base_url: str = "https://compute.googleapis.com/compute/v1"
        """Address of the Compute Engine API."""
        metadata_url: str = "http://metadata.google.internal"
        """Where tokens are requested without `credentials_file`."""
        timeout: Duration = Duration(30)
        """Of one request; waiting for an operation takes as long as the launch may."""
        wait_timeout: Duration = Duration(130)
        """Of one request that waits for an operation; Google holds it two minutes at most."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._client = bounded_client(timeout=float(options.timeout))
        self._tokens = token_source(
            self._client, options.credentials_file, self.name, options.metadata_url
        )

    @property
    def capabilities(self) -> Capabilities:
        """The name serves as the idempotency token, within a zone."""
        return Capabilities(
            idempotency_token=True,
            reboot=True,
            market=self.options.market,
            spot=True,
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch an instance and read the operation to its end; or adopt the existing one."""
        _check(request)
        for _ in range(TRIES_MAX):
            instance = await self._insert(request)
            if instance is None:
                continue
            if (instance.fleet, instance.token) == (request.fleet, request.token):
                return instance
            raise invalid(
                f"another instance in {request.zone} is named {request.name}; remove it, or rename "
                "the pool"
            )
        raise ProviderError("TRANSIENT", f"{request.name} is removed as fast as it is launched")

    async def _insert(self, request: ProvisionRequest) -> Instance | None:
        """Return the instance of this name, created if there is none; None if removed meanwhile."""
        path = f"zones/{request.zone}/instances"
        # The name makes a launch idempotent. The request ID only serves retries by HTTP: used
        # again, it would return an earlier failure.
        call = self._call(
            "POST", path, body=_body(request, self.options), requestId=str(uuid.uuid4())
        )
        operation = await none_if(call, HTTPStatus.CONFLICT)
        if operation is not None:
            await self._finish(request.zone, operation)
        found = await none_if(self._call("GET", f"{path}/{request.name}"), HTTPStatus.NOT_FOUND)
        return _instance(found) if found is not None else None

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; one that Google does not know is gone."""
        path = _path(provider_id)
        if path:
            call = self._call("DELETE", path, requestId=str(uuid.uuid4()))
            await none_if(call, HTTPStatus.NOT_FOUND)

    async def reboot(self, instance: Instance) -> None:
        """Reset it, as by its power button."""
        await self._call(
            "POST", f"{_path(instance.provider_id)}/reset", requestId=str(uuid.uuid4())
        )

    async def list(self) -> list[Instance]:
        """Return every labelled instance of every zone; an answer that lacks a zone is an error."""
        return [_instance(each) for each in await self._labelled()]

    async def report_hosts(self) -> HostReport:
        """Announced maintenance; Compute Engine reports no status checks."""
        found = [(_instance(each).provider_id, each) for each in await self._labelled()]
        return HostReport(events=tuple(upcoming_maintenance(found)))

    async def _labelled(self) -> Sequence[Any]:
        found: Sequence[Any] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._call(
                "GET",
                "aggregated/instances",
                filter=f"labels.{FLEET_TAG}:*",
                maxResults=PAGE,
                **more,
            )
            if page.get("unreachables"):
                raise ProviderError("TRANSIENT", f"no answer from {page['unreachables']}")
            for scope in page.get("items", {}).values():
                found = [*found, *scope.get("instances", ())]
            if not page.get("nextPageToken"):
                return found
            more = {"pageToken": page["nextPageToken"]}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _finish(self, zone: str, operation: Any) -> None:
        """Wait until an operation is done; raise its error."""
        while operation.get("status") != "DONE":
            operation = await self._call(
                "POST",
                f"zones/{zone}/operations/{operation['name']}/wait",
                timeout_seconds=float(self.options.wait_timeout),
            )
        error = operation_error(operation)
        if error is not None:
            raise error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        timeout_seconds: float = 0.0,
        **query: Any,
    ) -> Any:
        """Make one request; every failure is a ProviderError."""
        token = await self._tokens.token()
        answer = await send(
            self._client,
            method,
            path,
            url=f"{self.options.base_url}/projects/{self.options.project}/{path}",
            params=query,
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout_seconds or float(self.options.timeout),
        )
        body_read = read_body(answer)
        if not answer.is_success:
            raise error_of(answer.status_code, body_read if isinstance(body_read, dict) else {})
        return body_read


# --- parts ---------------------------------------------------------------------------------------


def _check(request: ProvisionRequest) -> None:
    if not request.zone:
        raise invalid(f"pool {request.pool} names no `zones`; Google needs one")
    if not NAME.fullmatch(request.name):
        raise invalid(
            f"Google refuses the name {request.name!r}: it must begin with a letter; rename the "
            "pool"
        )
    rule = "at Google: lower case letters, digits, _ and -, at most 63"
    check_labels(request.labels, (LABEL, LABEL), request.pool, rule)


def _body(request: ProvisionRequest, options: GcpProvider.Options) -> dict[str, Any]:
    interface: dict[str, Any] = {"network": options.network}
    if options.subnetwork:
        interface["subnetwork"] = options.subnetwork
    if options.public_address:
        interface["accessConfigs"] = [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]
    metadata = [{"key": "ssh-keys", "value": "\n".join(request.ssh_keys)}]
    metadata += [{"key": "user-data", "value": request.user_data}]
    body: dict[str, Any] = {
        "name": request.name,
        "machineType": f"zones/{request.zone}/machineTypes/{request.instance_type}",
        "labels": tags_of(request),
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": options.image or _default_image(request.instance_type),
                    "diskSizeGb": str(options.root_gb),
                },
            }
        ],
        "networkInterfaces": [interface],
        "scheduling": _scheduling(request.market or options.market, options),
        "metadata": {"items": [each for each in metadata if each["value"]]},
    }
    if request.placement_group:
        region = request.region or request.zone.rpartition("-")[0]
        policy = f"regions/{region}/resourcePolicies/{request.placement_group}"
        body["resourcePolicies"] = [f"projects/{options.project}/{policy}"]
    if options.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        body["serviceAccounts"] = [{"email": options.service_account, "scopes": [scope]}]
    return body


def _default_image(instance_type: str) -> str:
    """Google's image with the driver, for the processors of an instance type."""
    family = IMAGE_ARM if instance_type.startswith(ARM_TYPES) else IMAGE_X86
    return f"projects/ubuntu-os-accelerator-images/global/images/family/{family}"


def _scheduling(market: str, options: GcpProvider.Options) -> dict[str, Any]:
    spot = market == "spot"
    scheduling: dict[str, Any] = {
        # GPUs cannot be moved to another host while they run.
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": not spot,
        "provisioningModel": "SPOT" if spot else "STANDARD",
    }
    if spot or options.max_run:
        scheduling["instanceTerminationAction"] = "DELETE"
    if options.max_run:
        scheduling["maxRunDuration"] = {"seconds": str(int(options.max_run))}
    return scheduling


def _path(provider_id: str) -> str:
    """Return the path of `zone/name`; empty if the ID has another format."""
    zone, _, name = provider_id.partition("/")
    return f"zones/{zone}/instances/{name}" if zone and NAME.fullmatch(name) else ""


def _instance(made: Any) -> Instance:
    zone = _last(made.get("zone", ""))
    interface = (made.get("networkInterfaces") or [{}])[0]
    access = (interface.get("accessConfigs") or [{}])[0]
    created = made.get("creationTimestamp")
    instance = Instance(
        name=made["name"],
        provider_id=f"{zone}/{made['name']}",
        # An instance with an unknown status exists, and must not be lost.
        status=STATUSES.get(made.get("status", ""), "running"),
        instance_type=_last(made.get("machineType", "")),
        region=zone.rpartition("-")[0],
        zone=zone,
        address=access.get("natIP") or interface.get("networkIP", ""),
        host=made.get("resourceStatus", {}).get("physicalHost", ""),
        created_at=datetime.fromisoformat(created) if created else None,
    )
    return with_tags(instance, made.get("labels", {}))


def _last(url: str) -> str:
    return str(url).rpartition("/")[2]
