"""Azure: virtual machines of one resource group.

A machine's name is derived from the intention, and a machine is created only if none has that name
(`If-None-Match: *`), so a repeated launch adopts the existing one. An accepted launch can still
fail: its operation is read to the end, and what it leaves is removed, because its name, interface
and address would block the next attempt. Interfaces and addresses that a crash left without a
machine are listed, and removed like instances.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import httpx

from schemas.offering_records import OfferingPrice
from services.provisioner.instances.instance_tags import FLEET_TAG, TOKEN_TAG, unique_name
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import azure_prices
from services.provisioner.providers import azure_vm as vm
from services.provisioner.providers.azure_auth import Endpoints, read_principal, token_source
from services.provisioner.providers.azure_errors import error_of
from services.provisioner.providers.azure_http import AzureClient

COMPUTE: Final = "2026-04-01"
NETWORK: Final = "2026-03-01"
"""Versions of the API; what is sent was checked against these."""
TRIES_MAX: Final = 3
"""Of one launch whose parts are removed meanwhile."""
VIEW: Final = {"$expand": "instanceView"}
FAILED: Final = "Failed"
DELETING: Final = "Deleting"
UNDER_WAY: Final = frozenset({"Creating", DELETING})
LOST: Final = frozenset({"NetworkInterfaceNotFound", "InvalidResourceReference"})
"""Of a launch whose interface was removed meanwhile, or which names a missing resource."""
RESERVED: Final = "NicReservedForAnotherVm"
"""Of an interface whose machine was refused: Azure holds it three minutes for that very machine."""
IN_DOUBT: Final = frozenset({"TRANSIENT", "NETWORK", "THROTTLE"})


class AzureProvider:
    """Virtual machines of one resource group."""

    Options = vm.AzureOptions

    def __init__(
        self,
        *,
        options: vm.AzureOptions,
        environment: Environment,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.options = options
        self.name = environment.name
        self._http = httpx.AsyncClient(timeout=float(options.timeout), transport=transport)
        principal = read_principal(
            self.name,
            tenant=options.tenant,
            client_id=options.client_id,
            secret_env=options.client_secret_env,
            secret_file=options.client_secret_file,
        )
        endpoints = Endpoints(
            login_url=options.login_url,
            metadata_url=options.metadata_url,
            audience=options.audience,
        )
        self._azure = AzureClient(
            self._http,
            token_source(self._http, principal, endpoints, options.client_id),
            base_url=options.base_url,
            poll_seconds=float(options.poll_interval),
        )

    @property
    def capabilities(self) -> Capabilities:
        """A derived name is as good as a token."""
        return Capabilities(
            idempotency_token=True,
            reboot=True,
            prices=bool(self.options.prices_url),
            region=self.options.location,
            market=self.options.market,
            spot=True,
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch a machine and read the operation to its end; or adopt the existing one."""
        vm.check(request, self.options, self.name)
        name = unique_name(request)
        for _ in range(TRIES_MAX):
            machine = await self._settled(name, request) or await self._launched(name, request)
            if machine is not None:
                return await self._instance(name, machine)
        raise ProviderError("TRANSIENT", f"{name} is removed as fast as it is launched")

    async def terminate(self, provider_id: str) -> None:
        """Begin to remove a machine; where there is none, what a launch has left of it."""
        if not vm.NAME.fullmatch(provider_id):
            return
        try:
            answer = await self._azure.send("DELETE", self._vm(provider_id), version=COMPUTE)
        except ProviderError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        else:
            if answer.status_code != HTTPStatus.NO_CONTENT:
                # Accepted: disk, interface and address go with it.
                return
        await self._remove_network(provider_id)

    async def reboot(self, instance: Instance) -> None:
        """Restart it; INVALID if it does not exist."""
        path = f"{self._vm(instance.provider_id)}/restart"
        await self._azure.send("POST", path, version=COMPUTE)

    async def list(self) -> list[Instance]:
        """Return every machine with a fleet's tag, and what is left of those without a machine."""
        # Machines last: the interface of a machine launched meanwhile must not look left over.
        nics = await self._azure.pages(self._nic(""), version=NETWORK)
        addresses = await self._azure.pages(self._ip(""), version=NETWORK)
        machines = await self._azure.pages(self._vm(""), version=COMPUTE, query=VIEW)
        return vm.instances(machines, nics, addresses)

    async def prices(self, instance_types: Sequence[str]) -> Sequence[OfferingPrice]:
        """List prices of these sizes in this location, on demand and spot."""
        found: list[Any] = []
        if self.options.prices_url:
            for query in azure_prices.questions(self.options.location, instance_types):
                found += await self._azure.public(
                    self.options.prices_url.rstrip("/"), azure_prices.PATH, query
                )
        return azure_prices.known(self.options.location, found)

    async def close(self) -> None:
        """Give back the connections."""
        await self._http.aclose()

    # --- a launch --------------------------------------------------------------------------------

    async def _settled(self, name: str, request: ProvisionRequest) -> Any:
        """Return the machine of this name when it is created; None if none, or a failed one."""
        while True:
            machine = await self._azure.get(self._vm(name), version=COMPUTE, query=VIEW)
            if machine is None:
                return None
            tags = machine.get("tags") or {}
            if (tags.get(FLEET_TAG), tags.get(TOKEN_TAG)) != (request.fleet, request.token):
                raise ProviderError(
                    "INVALID", f"another machine is named {name}; remove or rename it"
                )
            state = vm.state_of(machine)
            if state == FAILED and not _runs(machine):
                await self._remove(name)
                return None
            if state not in UNDER_WAY:
                return machine
            await self._azure.pause()

    async def _launched(self, name: str, request: ProvisionRequest) -> Any:
        """The machine, just made; None where it must be looked for again."""
        market = request.market or self.options.market
        try:
            nic = await self._network(name, request)
            answer = await self._azure.send(
                "PUT",
                self._vm(name),
                version=COMPUTE,
                body=vm.machine_body(request, self.options, nic),
                headers={"If-None-Match": "*"},
                market=market,
            )
            await self._azure.finish(answer, market)
        except ProviderError as error:
            if error.status is None:
                raise
            if error.status == HTTPStatus.PRECONDITION_FAILED:
                return None
            if error.code in LOST and await self._is_lost(name):
                return None
            if error.kind not in IN_DOUBT:
                await self._give_way(name, error)
            raise
        machine = await self._azure.get(self._vm(name), version=COMPUTE, query=VIEW)
        if machine is not None and vm.state_of(machine) == FAILED and not _runs(machine):
            failure = error_of(0, vm.failure_of(machine), market)
            await self._give_way(name, failure)
            raise failure
        return machine

    async def _network(self, name: str, request: ProvisionRequest) -> str:
        """The id of the machine's interface, made with its address where one is wanted."""
        address = ""
        if self.options.public_address:
            address = self._ip(name)
            body = vm.address_body(request, self.options)
            await self._azure.finish(
                await self._azure.send("PUT", address, version=NETWORK, body=body)
            )
        nic = self._nic(name)
        body = vm.nic_body(request, self.options, address)
        await self._azure.finish(await self._azure.send("PUT", nic, version=NETWORK, body=body))
        return nic

    async def _is_lost(self, name: str) -> bool:
        return await self._azure.get(self._nic(name), version=NETWORK) is None

    async def _give_way(self, name: str, error: ProviderError) -> None:
        """Remove what a failed launch left; where that fails the launch is in doubt."""
        try:
            machine = await self._azure.get(self._vm(name), version=COMPUTE, query=VIEW)
            if machine is None:
                await self._clear_network(name)
            elif vm.state_of(machine) == FAILED and not _runs(machine):
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
        await self._azure.finish(await self._azure.send("DELETE", self._vm(name), version=COMPUTE))
        await self._clear_network(name)

    async def _clear_network(self, name: str) -> None:
        """Remove what Azure lets go; an interface that it holds serves the next try as well.

        Where there is none the list shows it, and it is removed like any instance.
        """
        try:
            await self._remove_network(name)
        except ProviderError as error:
            if error.code != RESERVED:
                raise

    async def _remove_network(self, name: str) -> None:
        """Remove the interface first: it holds the address."""
        for path in (self._nic(name), self._ip(name)):
            try:
                await self._azure.finish(await self._azure.send("DELETE", path, version=NETWORK))
            except ProviderError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

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
        return self._path("Microsoft.Compute/virtualMachines", name)

    def _nic(self, name: str) -> str:
        return self._path("Microsoft.Network/networkInterfaces", name and f"{name}{vm.NIC}")

    def _ip(self, name: str) -> str:
        return self._path("Microsoft.Network/publicIPAddresses", name and f"{name}{vm.ADDRESS}")


def _runs(machine: Any) -> bool:
    """A machine whose last change failed, and which runs all the same, is not ours to remove."""
    return vm.instance(machine, {}, {}).status == "running"
