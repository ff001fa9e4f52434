"""Launches and removes Google Compute Engine instances of one project.

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
from typing import Any, ClassVar, Final

from schemas.launch_offers import Offering
from schemas.offering_records import OfferingPrice, OfferingQuota
from services.provisioner.instances.instance_tags import FLEET_TAG, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    HostReport,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers.gcp_errors import operation_error
from services.provisioner.providers.gcp_http import PRICES_SCOPE, GcpApi, token_source
from services.provisioner.providers.gcp_launch import (
    GcpOptions,
    launch_body,
    region_of_zone,
    upcoming_maintenance,
)
from services.provisioner.providers.gcp_prices import GcpMachines, GcpPrices, GcpQuotas
from services.provisioner.providers.provider_ids import google_instance_id
from services.provisioner.providers.request_checks import (
    check_labels,
    invalid,
    market_of,
    options_of,
)
from services.runtime.bounded_http import bounded_client

NAME: Final = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")
PAGE: Final = 500
RIGHT_TO_PRICES: Final = "enable the Cloud Billing API in the project of the credentials"
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
    """Launches and removes instances of one project."""

    Options = GcpOptions
    per_pool: ClassVar = frozenset(
        {"image", "network", "subnetwork", "public_address", "networks", "accelerators", "labels"}
        | {"service_account", "root_gb", "disk_type", "disk_kms_key", "max_run"}
    )
    """Options that a pool may set for its own nodes."""

    def __init__(self, *, options: GcpOptions, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._client = bounded_client(timeout=float(options.timeout))
        url = f"{options.base_url}/projects/{options.project}"
        self._compute = self._api(url)
        self._billing = self._api(options.prices_url.rstrip("/"), PRICES_SCOPE)
        machines = GcpMachines(self._compute)
        self._prices = GcpPrices(machines, self._billing, RIGHT_TO_PRICES)
        flexible = options.provisioning == "flex-start"
        self._quotas = GcpQuotas(self._compute, machines, options.project, flexible=flexible)

    @property
    def capabilities(self) -> Capabilities:
        """The name serves as the idempotency token, within a zone."""
        return Capabilities(
            idempotency_token=True,
            prices=bool(self.options.prices_url),
            reboot=True,
            market="reserved" if self.options.reservation else self.options.market,
            spot=True,
            reserved=bool(self.options.reservation),
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
        market = market_of(request, self.capabilities, self.name, "reservation")
        body = launch_body(request, options_of(self, self.options, request), market)
        call = self._compute.call("POST", path, body=body, requestId=str(uuid.uuid4()))
        operation = await none_if(call, HTTPStatus.CONFLICT)
        if operation is not None:
            await self._finish(request.zone, operation)
        found = await none_if(
            self._compute.call("GET", f"{path}/{request.name}"), HTTPStatus.NOT_FOUND
        )
        return _instance(found) if found is not None else None

    canonical_id = staticmethod(google_instance_id)

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; one that Google does not know is gone."""
        path = _path(provider_id)
        if path:
            call = self._compute.call("DELETE", path, requestId=str(uuid.uuid4()))
            await none_if(call, HTTPStatus.NOT_FOUND)

    async def reboot(self, instance: Instance) -> None:
        """Reset it, as by its power button."""
        await self._compute.call(
            "POST", f"{_path(instance.provider_id)}/reset", requestId=str(uuid.uuid4())
        )

    async def list(self) -> list[Instance]:
        """Return every labelled instance of every zone; an answer that lacks a zone is an error."""
        return [_instance(each) for each in await self._labelled()]

    async def report_hosts(self) -> HostReport:
        """Announced maintenance; Compute Engine reports no status checks."""
        found = [(_instance(each).provider_id, each) for each in await self._labelled()]
        return HostReport(events=tuple(upcoming_maintenance(found)))

    async def report_faulty_host(self, provider_id: str, fault: str) -> bool:
        """Report it, and read the operation to its end: a removal meanwhile would undo it."""
        path = _path(provider_id)
        if not self.options.report_faulty_hosts or not path:
            return False
        reason = {"behavior": "UNRECOVERABLE_GPU_ERROR", "description": fault}
        body = {"disruptionSchedule": "IMMEDIATE", "faultReasons": [reason]}
        # The same for each attempt, so that a repeated report is ignored.
        request = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{path}/{fault}"))
        operation = await self._compute.call(
            "POST", f"{path}/reportHostAsFaulty", body=body, requestId=request
        )
        await self._finish(provider_id.partition("/")[0], operation)
        return True

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """List prices of these types by region, on demand and spot, without disks."""
        return await self._prices.read(instance_types) if self.options.prices_url else ()

    async def quotas(self, offerings: Sequence[Offering]) -> Sequence[OfferingQuota]:
        """Return the project's quotas of the GPUs of these offerings."""
        return await self._quotas.read(offerings)

    async def _labelled(self) -> Sequence[Any]:
        found: list[Any] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._compute.call(
                "GET",
                "aggregated/instances",
                filter=f"labels.{FLEET_TAG}:*",
                maxResults=PAGE,
                **more,
            )
            if page.get("unreachables"):
                raise ProviderError("TRANSIENT", f"no answer from {page['unreachables']}")
            for scope in page.get("items", {}).values():
                found += scope.get("instances", ())
            if not page.get("nextPageToken"):
                return found
            more = {"pageToken": page["nextPageToken"]}

    async def close(self) -> None:
        """Close the connections."""
        await self._compute.close()
        await self._billing.close()
        await self._client.aclose()

    async def _finish(self, zone: str, operation: Any) -> None:
        """Wait until an operation is done; raise its error."""
        while operation.get("status") != "DONE":
            operation = await self._compute.call(
                "POST",
                f"zones/{zone}/operations/{operation['name']}/wait",
                timeout_seconds=float(self.options.wait_timeout),
            )
        error = operation_error(operation)
        if error is not None:
            raise error

    def _api(self, url: str, *scope: str) -> GcpApi:
        options = self.options
        tokens = token_source(
            self._client, options.credentials_file, self.name, options.metadata_url, *scope
        )
        return GcpApi(self._client, tokens, url, float(options.timeout))


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
        region=region_of_zone(zone),
        zone=zone,
        address=access.get("natIP") or interface.get("networkIP", ""),
        host=made.get("resourceStatus", {}).get("physicalHost", ""),
        created_at=datetime.fromisoformat(created) if created else None,
    )
    return with_tags(instance, made.get("labels", {}))


def _last(url: str) -> str:
    return str(url).rpartition("/")[2]
