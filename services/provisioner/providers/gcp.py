"""Google Compute Engine: instances of one project.

An instance has its node's name, which is unique in its project and zone; so a repeated launch
adopts the existing instance. An accepted launch can still fail: its operation is read to the end.
Spot instances are deleted, not stopped, when they are reclaimed, and disks with their instances;
otherwise both would keep costing money.
"""

import re
import uuid
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import httpx
import msgspec

from schemas.duration import Duration
from schemas.settings import Setting
from services.provisioner.instances.instance_tags import FLEET_TAG, tags_of, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.gcp_auth import read_key, token_source
from services.provisioner.providers.gcp_errors import error_of, operation_error
from services.provisioner.providers.provider_http import send

NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")
PAGE: Final = 500
TRIES_MAX: Final = 3
"""Of one launch whose instance is removed meanwhile."""

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
        image: str
        """Image or image family: `projects/my-project/global/images/family/gpu-node`."""
        credentials_file: str = ""
        """A service account's key; empty: the metadata server of the machine this runs on."""
        market: Literal["on-demand", "spot"] = "on-demand"
        network: str = "global/networks/default"
        subnetwork: str = ""
        public_address: bool = True
        service_account: str = ""
        """That the node itself runs as; empty: none."""
        root_gb: Annotated[int, msgspec.Meta(ge=10, le=65_536)] = 100
        max_run: Duration = Duration(0)
        """After this Google itself deletes the instance; 0s: never."""
        base_url: str = "https://compute.googleapis.com/compute/v1"
        metadata_url: str = "http://metadata.google.internal"
        timeout: Duration = Duration(30)
        """Of one request; waiting for an operation takes as long as the launch may."""
        wait_timeout: Duration = Duration(130)
        """Of one request that waits for an operation; Google holds it two minutes at most."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._client = httpx.AsyncClient(timeout=float(options.timeout))
        key = read_key(options.credentials_file, self.name) if options.credentials_file else None
        self._tokens = token_source(self._client, key, options.metadata_url)

    @property
    def capabilities(self) -> Capabilities:
        """A name is as good as a token, within a zone."""
        return Capabilities(
            idempotency_token=True,
            server_side_ttl=bool(self.options.max_run),
            host_identity=True,
            reboot=True,
            market=self.options.market,
            spot=True,
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch an instance and read the operation to its end; or adopt the existing one."""
        _check(request)
        for _ in range(TRIES_MAX):
            instance = await self._inserted(request)
            if instance is None:
                continue
            if (instance.fleet, instance.token) == (request.fleet, request.token):
                return instance
            raise ProviderError(
                "INVALID",
                f"another instance in {request.zone} is named {request.name}; remove it, or rename "
                "the pool",
            )
        raise ProviderError("TRANSIENT", f"{request.name} is removed as fast as it is launched")

    async def _inserted(self, request: ProvisionRequest) -> Instance | None:
        """The instance of this name, made where there is none; None where it went meanwhile."""
        zone = f"zones/{request.zone}"
        try:
            operation = await self._call(
                "POST",
                f"{zone}/instances",
                body=_body(request, self.options),
                # For a repetition on the way only: the name is what makes a launch idempotent, and
                # an id used again would bring the old failure back.
                requestId=str(uuid.uuid4()),
            )
        except ProviderError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
        else:
            await self._finish(request.zone, operation)
        try:
            return _instance(await self._call("GET", f"{zone}/instances/{request.name}"))
        except ProviderError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; one that Google does not know is gone."""
        path = _path(provider_id)
        if path:
            try:
                await self._call("DELETE", path, requestId=str(uuid.uuid4()))
            except ProviderError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

    async def reboot(self, instance: Instance) -> None:
        """Reset it, as by its power button."""
        await self._call(
            "POST", f"{_path(instance.provider_id)}/reset", requestId=str(uuid.uuid4())
        )

    async def list(self) -> list[Instance]:
        """Every labelled instance in every zone; an answer that lacks a zone is an error."""
        found: list[Instance] = []
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
                found += [_instance(each) for each in scope.get("instances", ())]
            if not page.get("nextPageToken"):
                return found
            more = {"pageToken": page["nextPageToken"]}

    async def close(self) -> None:
        """Give back the connections."""
        await self._client.aclose()

    async def _finish(self, zone: str, operation: Any) -> None:
        """Wait until an operation is done; raise what it failed of."""
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
        """One request; anything but a good answer is a ProviderError."""
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
        try:
            said = msgspec.json.decode(answer.content or b"{}")
        except msgspec.DecodeError:
            said = {"error": {"message": answer.text[:200]}}
        if not answer.is_success:
            raise error_of(answer.status_code, said if isinstance(said, dict) else {})
        return said


# --- parts ---------------------------------------------------------------------------------------


def _check(request: ProvisionRequest) -> None:
    if not request.zone:
        raise ProviderError("INVALID", f"pool {request.pool} names no `zones`; Google needs one")
    if not NAME.fullmatch(request.name):
        raise ProviderError(
            "INVALID",
            f"{request.name!r} is no name at Google, which begins with a letter; rename the pool",
        )
    for key, value in request.labels.items():
        if not (LABEL.fullmatch(key) and LABEL.fullmatch(value)):
            raise ProviderError(
                "INVALID",
                f"label {key}={value} of pool {request.pool} is none at Google: lower case letters,"
                " digits, _ and -, 63 at most",
            )


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
                    "sourceImage": options.image,
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
    """`zone/name` as a path; empty where it is no id of ours."""
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
