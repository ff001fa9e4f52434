"""Launches GPU machines at Lambda Cloud, paid by the minute, through its public API v1.

The API has no idempotency token and no chosen IDs. So the node's name and the launch's token go
into the instance's name and tags, `provision` looks for them before it launches, and the
capabilities say that a launch whose answer was lost must be looked for. Requests are rate-limited,
because the API counts them for each key: one a second, one launch in twelve seconds.
"""

import hashlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, TypeVar

import httpx
import msgspec
from msgspec.structs import replace

from schemas.duration import Duration
from schemas.offering_records import OfferingPrice
from schemas.settings import FilePath, Setting
from services.provisioner.instances.instance_tags import instance_for, tags_of, with_tags
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.provider_client.rate_limit import RequestRate
from services.provisioner.providers.lambda_errors import error_of
from services.provisioner.providers.provider_http import decode, retry_after, send
from services.provisioner.providers.provider_secret import read_secret
from services.provisioner.providers.request_checks import invalid, options_of, ssh_keys
from services.runtime.bounded_http import bounded_client

NAME_CHARS_MAX: Final = 64
ACCOUNT_CHARS: Final = 12
LAUNCH: Final = "launch"
"""The kind of request that Lambda limits further."""
CENTS: Final = 100

STATUSES: Final[dict[str, InstanceStatus]] = {
    "booting": "pending",
    "active": "running",
    "unhealthy": "running",
    "terminating": "stopping",
}
"""Lambda's status -> ours; `terminated` and `preempted` cost nothing any more."""
GONE: Final = frozenset({"terminated", "preempted"})


class _Region(msgspec.Struct, frozen=True):
    name: str


class _Type(msgspec.Struct, frozen=True):
    name: str
    price_cents_per_hour: int = 0


class _Tag(msgspec.Struct, frozen=True):
    key: str
    value: str


class _Listed(msgspec.Struct, frozen=True):
    """The used fields of an instance."""

    id: str
    status: str
    region: _Region
    instance_type: _Type
    name: str | None = None
    ip: str | None = None
    tags: tuple[_Tag, ...] | None = None


class _Launched(msgspec.Struct, frozen=True):
    instance_ids: tuple[str, ...]


class _Instances(msgspec.Struct, frozen=True):
    data: tuple[_Listed, ...]


class _Launch(msgspec.Struct, frozen=True):
    data: _Launched


class _TypeOffer(msgspec.Struct, frozen=True):
    instance_type: _Type
    regions_with_capacity_available: tuple[_Region, ...] = ()


class _Types(msgspec.Struct, frozen=True):
    data: dict[str, _TypeOffer]


T = TypeVar("T")


class LambdaProvider:
    """Launches and removes instances of one Lambda account."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `providers: {lambda: {api_key_env: LAMBDA_API_KEY}}`."""

        api_key_env: str = "LAMBDA_API_KEY"
        """Environment variable that holds the key."""
        api_key_file: FilePath = ""
        """File that holds it instead."""
        base_url: str = "https://cloud.lambda.ai/api/v1"
        """Address of Lambda's API."""
        ssh_key: str = ""
        """Name of the key at Lambda, for pools that name none under `ssh_keys`."""
        image_family: str = ""
        """Empty: Lambda's own default image."""
        file_systems: tuple[str, ...] = ()
        """Names of the file systems at Lambda that nodes mount."""
        timeout: Duration = Duration(30)
        """Time limit of one request, without the wait for its slot."""
        request_interval: Duration = Duration(1)
        """Least time between two requests, as Lambda allows."""
        launch_interval: Duration = Duration(12)
        """Least time between two launches, as Lambda allows."""
        list_lag: Duration = Duration(10)
        """How long a new instance may be missing from the list; Lambda does not say."""

    per_pool: ClassVar = frozenset({"image_family", "file_systems", "ssh_key"})
    """Options that a pool may set for its own nodes."""

    def __init__(
        self,
        *,
        options: Options,
        environment: Environment,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.options = options
        self.name = environment.name
        key = read_secret(
            environment.name,
            "api_key",
            "the Lambda API key",
            env=options.api_key_env,
            file=options.api_key_file,
        )
        # Lambda counts requests per key, whatever the name of this provider.
        account = hashlib.sha256(key.encode()).hexdigest()[:ACCOUNT_CHARS]
        pace = RequestRate(
            interval_seconds=float(options.request_interval),
            slower_seconds={LAUNCH: float(options.launch_interval)},
        )
        self._rate_limiter = environment.rate_limiter(f"lambda-{account}", pace)
        self._client = bounded_client(
            base_url=options.base_url,
            timeout=float(options.timeout),
            transport=transport,
            headers={"Authorization": f"Bearer {key}"},
        )

    @property
    def capabilities(self) -> Capabilities:
        """Return what Lambda can do; it has no idempotency token.

        A launch in doubt must therefore be looked for.
        """
        return Capabilities(
            idempotency_token=False,
            prices=True,
            reboot=True,
            list_lag_seconds=float(self.options.list_lag),
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch an instance, unless this token has one already."""
        body = self._body(request)
        existing = [each for each in await self.list() if _is_for(each, request)]
        if existing:
            return min(existing, key=lambda each: each.provider_id)
        answer = await self._call(
            "POST", "/instance-operations/launch", _Launch, body, slot_kind=LAUNCH
        )
        if not answer.data.instance_ids:
            raise ProviderError("TRANSIENT", "the launch was accepted and names no instance")
        # Lambda has no zones.
        return replace(instance_for(request, answer.data.instance_ids[0]), zone="")

    canonical_id = staticmethod(str.lower)

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove an instance; one that Lambda does not know is gone."""
        await none_if(self._operate("terminate", provider_id), "global/object-does-not-exist")

    async def reboot(self, instance: Instance) -> None:
        """Restart it; INVALID if it does not exist."""
        await self._operate("restart", instance.provider_id)

    async def _operate(self, operation: str, provider_id: str) -> msgspec.Raw:
        path = f"/instance-operations/{operation}"
        return await self._call("POST", path, msgspec.Raw, {"instance_ids": [provider_id]})

    async def list(self) -> list[Instance]:
        """Return every instance of the account that may still cost money."""
        answer = await self._call("GET", "/instances", _Instances)
        return [_instance(each) for each in answer.data if each.status not in GONE]

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """Return every type's price, and the regions that report capacity; one answer has all."""
        del instance_types
        answer = await self._call("GET", "/instance-types", _Types)
        found: list[OfferingPrice] = []
        for each in answer.data.values():
            kind = each.instance_type
            dollars = kind.price_cents_per_hour / CENTS
            known = OfferingPrice(
                instance_type=kind.name, dollars_per_hour=dollars, available=False
            )
            # Regions that are not listed have no capacity.
            found.append(known)
            found += [
                msgspec.structs.replace(known, region=region.name, available=True)
                for region in each.regions_with_capacity_available
            ]
        return tuple(found)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _body(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return the launch request; INVALID with the remedy if the pool lacks a setting."""
        if not request.region:
            raise invalid(f"pool {request.pool} names no `region`; Lambda needs it")
        options = options_of(self, self.options, request)
        keys = ssh_keys(request, options.ssh_key)
        if len(keys) != 1:
            raise invalid(
                f"Lambda takes exactly one SSH key and pool {request.pool} names {len(keys)}; set "
                f"`ssh_keys` of the pool, or `ssh_key` of provider {self.name}"
            )
        if len(request.name) > NAME_CHARS_MAX:
            raise invalid(f"{request.name!r} is longer than {NAME_CHARS_MAX} characters")
        tags = tags_of(request)
        body: dict[str, Any] = {
            "region_name": request.region,
            "instance_type_name": request.instance_type,
            "ssh_key_names": list(keys),
            "file_system_names": list(options.file_systems),
            "hostname": request.name,
            "name": request.name,
            "tags": [{"key": key, "value": value} for key, value in sorted(tags.items())],
        }
        if options.image_family:
            body["image"] = {"family": options.image_family}
        if request.user_data:
            body["user_data"] = request.user_data
        return body

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: dict[str, Any] | None = None,
        *,
        slot_kind: str = "",
    ) -> T:
        """Make one request in its slot; every failure is a ProviderError."""
        await self._rate_limiter.wait_for_slot(slot_kind)
        answer = await send(self._client, method, path, json=body)
        if answer.status_code != HTTPStatus.OK:
            raise error_of(answer.status_code, answer.content, retry_after(answer))
        return decode(answer, kind, f"{method} {path}")


def _is_for(instance: Instance, request: ProvisionRequest) -> bool:
    same = instance.fleet == request.fleet and instance.token == request.token
    return same and instance.status in ("pending", "running")


def _instance(listed: _Listed) -> Instance:
    instance = Instance(
        name=listed.name or listed.id,
        provider_id=listed.id,
        # An instance with an unknown status exists, and must not be lost.
        status=STATUSES.get(listed.status, "running"),
        instance_type=listed.instance_type.name,
        region=listed.region.name,
        address=listed.ip or "",
        dollars_per_hour=listed.instance_type.price_cents_per_hour / CENTS,
    )
    return with_tags(instance, {each.key: each.value for each in listed.tags or ()})
