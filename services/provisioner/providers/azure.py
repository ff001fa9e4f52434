"""Launches and removes virtual machines of one resource group at Azure.

A machine's name is derived from the intention, and a machine is created only if none has that name
(`If-None-Match: *`), so a repeated launch adopts the existing one. An accepted launch can still
fail: its operation is read to the end, and its leftovers are removed, because its name, interface
and address would block the next attempt. Interfaces and addresses that a crash left without a
machine are listed, and removed like instances.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final

import httpx

from schemas.launch_offers import Market
from schemas.offering_records import OfferingPrice
from services.provisioner.instances.instance_tags import FLEET_TAG, TOKEN_TAG, unique_name
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError, none_if
from services.provisioner.providers import azure_prices
from services.provisioner.providers import azure_vm as vm
from services.provisioner.providers.azure_errors import error_of
from services.provisioner.providers.azure_http import AzureClient, token_source
from services.provisioner.providers.provider_ids import azure_machine_name
from services.provisioner.providers.request_checks import invalid, market_of, options_of
from services.runtime.bounded_http import bounded_client

log = logging.getLogger(__name__)

COMPUTE: Final = "2026-04-01"
NETWORK: Final = "2026-03-01"
"""Versions of the API against which the requests were checked."""
TRIES_MAX: Final = 3
"""Attempts of one launch whose parts are removed meanwhile."""
VIEW: Final = {"$expand": "instanceView"}
STATUS_ONLY: Final = {"statusOnly": "true"}
MACHINES: Final = "Microsoft.Compute/virtualMachines"
FORBIDDEN: Final = "AuthorizationFailed"
IN_PROGRESS: Final = frozenset({"Creating", "Deleting"})
LOST: Final = frozenset({"NetworkInterfaceNotFound", "InvalidResourceReference"})
"""The launch's interface was removed meanwhile, or the launch names a missing resource."""
RESERVED: Final = "NicReservedForAnotherVm"
"""Azure holds the interface of a refused machine for three minutes, for that machine only."""
IN_DOUBT: Final = frozenset({"TRANSIENT", "NETWORK", "THROTTLE"})


class AzureProvider:
    """Launches and removes virtual machines of one resource group."""

    Options = vm.AzureOptions
    per_pool: ClassVar = frozenset(
        {"image", "subnet", "security_group", "accelerated_networking", "scale_set", "identity"}
        | {"placement_group", "root_gb", "disk_type", "disk_encryption_set", "ssh_key"}
    )
    """Options that a pool may set for its own nodes."""

    def __init__(
        self,
        *,
        options: vm.AzureOptions,
        environment: Environment,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.options = options
        self.name = environment.name
        self._lacks_views = False
        """Its principal may not read the subscription, as was logged."""
        self._http = bounded_client(timeout=float(options.timeout), transport=transport)
        self._tokens = token_source(options, self.name)
        self._azure = AzureClient(
            self._http,
            self._tokens,
            base_url=options.base_url,
            poll_seconds=float(options.poll_interval),
        )

    @property
    def capabilities(self) -> Capabilities:
        """A derived name serves as the idempotency token."""
        reserved = bool(self.options.capacity_reservation_group)
        return Capabilities(
            idempotency_token=True,
            reboot=True,
            prices=bool(self.options.prices_url),
            region=self.options.location,
            market="reserved" if reserved else self.options.market,
            spot=not self.options.availability_set,
            reserved=reserved,
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch a machine and read the operation to its end; or adopt the existing one."""
        options = options_of(self, self.options, request)
        vm.check(request, options, self.name)
        self._market(request)
        name = unique_name(request)
        for _ in range(TRIES_MAX):
            machine = await self._existing_machine(name, request) or await self._launch(
                name, request, options
            )
            if machine is not None:
                return await self._instance(name, machine)
        raise ProviderError("TRANSIENT", f"{name} is removed as fast as it is launched")

    def joins_fabric(self, request: ProvisionRequest) -> bool:
        """Return whether the node is in a set, within which alone Azure connects InfiniBand."""
        options = options_of(self, self.options, request)
        return bool(options.scale_set or options.availability_set)

    canonical_id = staticmethod(azure_machine_name)

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove a machine or, without one, the leftovers of its launch."""
        if not vm.NAME.fullmatch(provider_id):
            return
        call = self._azure.send("DELETE", self._vm(provider_id), version=COMPUTE)
        answer = await none_if(call, HTTPStatus.NOT_FOUND)
        # Once accepted, the removal includes disk, interface and address.
        if answer is None or answer.status_code == HTTPStatus.NO_CONTENT:
            await self._remove_network(provider_id)

    async def reboot(self, instance: Instance) -> None:
        """Restart it; INVALID if it does not exist."""
        path = f"{self._vm(instance.provider_id)}/restart"
        await self._azure.send("POST", path, version=COMPUTE)

    async def list(self) -> list[Instance]:
        """Return every machine with a fleet's tag, and what is left of those without a machine."""
        # Machines last: an interface whose machine is launched meanwhile must not look abandoned.
        views = await self._views()
        nics = await self._azure.pages(self._nic(""), version=NETWORK)
        addresses = await self._azure.pages(self._ip(""), version=NETWORK)
        machines = await self._azure.pages(self._vm(""), version=COMPUTE)
        return vm.instances(vm.with_views(machines, views), nics, addresses)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """List prices of these sizes in this location, on demand and spot."""
        found: list[Any] = []
        if self.options.prices_url:
            for query in azure_prices.price_queries(self.options.location, instance_types):
                found += await self._azure.public(
                    self.options.prices_url.rstrip("/"), azure_prices.PATH, query
                )
        return azure_prices.parse_prices(self.options.location, found)

    async def close(self) -> None:
        """Close the connections."""
        await self._tokens.close()
        await self._http.aclose()

    # --- a launch --------------------------------------------------------------------------------

    async def _existing_machine(self, name: str, request: ProvisionRequest) -> Any:
        """Return the machine of this name when it is created; None if none, or a failed one."""
        while True:
            machine = await self._machine(name)
            if machine is None:
                return None
            tags = machine.get("tags") or {}
            if (tags.get(FLEET_TAG), tags.get(TOKEN_TAG)) != (request.fleet, request.token):
                raise invalid(f"another machine is named {name}; remove or rename it")
            if _has_failed(machine):
                await self._remove(name)
                return None
            if vm.state_of(machine) not in IN_PROGRESS:
                return machine
            await self._azure.pause()

    async def _launch(self, name: str, request: ProvisionRequest, options: vm.AzureOptions) -> Any:
        """Create the machine; None: it, or its interface, was created or removed meanwhile."""
        market = self._market(request)
        try:
            nic = await self._network(name, request, options)
            await self._azure.run(
                "PUT",
                self._vm(name),
                version=COMPUTE,
                body=vm.machine_body(request, options, nic, market),
                headers={"If-None-Match": "*"},
                market=market,
            )
        except ProviderError as error:
            if error.status is None:
                raise
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                return None
            if error.code in LOST:
                nic = await self._azure.get(self._nic(name), version=NETWORK)
                if nic is None:
                    return None
            if error.kind not in IN_DOUBT:
                await self._remove_leftovers(name, error)
            raise
        machine = await self._machine(name)
        if machine is not None and _has_failed(machine):
            failure = error_of(0, vm.failure_of(machine), market)
            await self._remove_leftovers(name, failure)
            raise failure
        return machine

    def _market(self, request: ProvisionRequest) -> Market:
        return market_of(request, self.capabilities, self.name, "capacity_reservation_group")

    async def _network(self, name: str, request: ProvisionRequest, options: vm.AzureOptions) -> str:
        """Create the machine's interface, with a public address if configured; return its ID."""
        address = ""
        if options.public_address:
            address = self._ip(name)
            body = vm.address_body(request, options)
            await self._azure.run("PUT", address, version=NETWORK, body=body)
        nic = self._nic(name)
        body = vm.nic_body(request, options, address)
        await self._azure.run("PUT", nic, version=NETWORK, body=body)
        return nic

    async def _machine(self, name: str) -> Any:
        return await self._azure.get(self._vm(name), version=COMPUTE, query=VIEW)

    async def _views(self) -> Sequence[Any]:
        """Power states: Azure lists them for whole subscriptions and for scale sets alone.

        Without the right to read the subscription there are none: machines count as running.
        """
        path = f"/subscriptions/{self.options.subscription}/providers/{MACHINES}"
        try:
            return await self._azure.pages(path, version=COMPUTE, query=STATUS_ONLY)
        except ProviderError as error:
            if error.code != FORBIDDEN:
                raise
            if not self._lacks_views:
                remedy = "grant Microsoft.Compute/virtualMachines/read on the subscription"
                log.warning("no power states", extra={"provider": self.name, "remedy": remedy})
            self._lacks_views = True
            return ()

    async def _remove_leftovers(self, name: str, error: ProviderError) -> None:
        """Remove what a failed launch left; where that fails the launch is in doubt."""
        try:
            machine = await self._machine(name)
            if machine is None:
                await self._clear_network(name)
            elif _has_failed(machine):
                await self._remove(name)
        except ProviderError as again:
            raise ProviderError(
                "TRANSIENT",
                f"{error.message}; what the launch left could not be removed: {again.message}",
                retry_after=again.retry_after,
                unknown=error.unknown,
            ) from again

    async def _remove(self, name: str) -> None:
        """Remove a machine and all its parts, and wait for it."""
        await self._azure.run("DELETE", self._vm(name), version=COMPUTE)
        await self._clear_network(name)

    async def _clear_network(self, name: str) -> None:
        """Remove the interface and address; an interface that Azure holds serves the next attempt.

        Without a next attempt the list shows it, and it is removed like an instance.
        """
        await none_if(self._remove_network(name), RESERVED)

    async def _remove_network(self, name: str) -> None:
        """Remove the interface first: it holds the address."""
        for path in (self._nic(name), self._ip(name)):
            await none_if(self._azure.run("DELETE", path, version=NETWORK), HTTPStatus.NOT_FOUND)

    async def _instance(self, name: str, machine: Any) -> Instance:
        """Return the machine with its address, if it has one already."""
        nic = await self._azure.get(self._nic(name), version=NETWORK) or {}
        address: Any = {}
        if self.options.public_address:
            address = await self._azure.get(self._ip(name), version=NETWORK) or {}
        return vm.instance(
            machine,
            {str(nic.get("id", "")).lower(): nic},
            {str(address.get("id", "")).lower(): address},
        )

    # --- paths -----------------------------------------------------------------------------------

    def _path(self, kind: str, name: str) -> str:
        group = (
            f"/subscriptions/{self.options.subscription}"
            f"/resourceGroups/{self.options.resource_group}/providers/{kind}"
        )
        return f"{group}/{name}" if name else group

    def _vm(self, name: str) -> str:
        return self._path(MACHINES, name)

    def _nic(self, name: str) -> str:
        return self._path("Microsoft.Network/networkInterfaces", name and f"{name}{vm.NIC}")

    def _ip(self, name: str) -> str:
        return self._path("Microsoft.Network/publicIPAddresses", name and f"{name}{vm.ADDRESS}")


def _has_failed(machine: Any) -> bool:
    """Whether it failed at launch; one that runs although its last change failed has not."""
    failed = vm.state_of(machine) == "Failed"
    return failed and vm.instance(machine, {}, {}).status != "running"
