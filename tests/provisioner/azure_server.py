"""Azure Resource Manager as Microsoft's own SDK models it, on a free port, and strict.

`data/azure.json` holds names, types and requirements out of the models of azure-mgmt-compute and
azure-mgmt-network: paths, methods, versions, parameters, fields, values. Anything else is refused.
Long operations take two looks to be done: machines by a monitor, the network by a place. Machines
hold their interface, interfaces their address; delete options are followed, and only they. Faults
are made to order.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.provisioner import azure_price_list
from tests.provisioner.azure_logins import AzureLogins
from tests.provisioner.azure_models import AzureRefusalError, check_body, check_machine, method_of
from tests.support.serving import serving as serving_app

SUBSCRIPTION = "00000000-1111-2222-3333-444444444444"
GROUP = "gpus"
HERE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
SUBNET = f"{HERE}/Microsoft.Network/virtualNetworks/net/subnets/nodes"
PAGE_MAX = 4
"""Of a list; small, so that there are several."""
KINDS = {"virtualMachines": "machine", "networkInterfaces": "nic", "publicIPAddresses": "address"}


class AzureServer:
    """Serves the strict API of one resource group."""

    def __init__(self) -> None:
        self.resources: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self.disks: set[str] = set()
        self.operations: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.logins = AzureLogins()
        self.refusals: list[tuple[str, AzureRefusalError, bool]] = []
        """Method, answer, and whether the request takes effect all the same."""
        self.failures: list[str] = []
        """Codes that the next operations of a launch fail of."""
        self.silent: set[str] = set()
        """Methods whose requests take effect and are never answered."""
        self.latency = 0.0
        self.reserved = False
        """Interfaces are held for the machine that was refused."""
        self.reads_subscription = True
        """The principal may list what is outside the resource group."""
        self.slow_removals = False
        """A removed machine exists until it is polled twice."""
        self.url = ""
        self.reached = ""
        """The address that the request under way came to, out of which Azure makes others."""

    @property
    def machines(self) -> dict[str, dict[str, Any]]:
        """Return the virtual machines by name."""
        return self.resources["virtualMachines"]

    @property
    def existing(self) -> set[str]:
        """Every resource that exists, by name."""
        return {name for kind in self.resources.values() for name in kind} | self.disks

    def refuse(
        self, method: str, status: int, code: str, *, after_success: bool = False, wait: str = ""
    ) -> None:
        """Answer the next call of a method so."""
        self.refusals.append((method, AzureRefusalError(status, code, code, wait), after_success))

    def app(self) -> Starlette:
        """Return one application with the API, prices, monitors and the metadata service."""
        verbs = ["GET", "POST", "DELETE", "PUT", "PATCH"]
        return Starlette(
            routes=[
                Route("/metadata/identity/oauth2/token", self.logins.metadata),
                Route("/api/retail/prices", azure_price_list.answer),
                Route("/monitors/{name}", self._monitor),
                Route("/places/{name}", self._place),
                Route("/{path:path}", self._api, methods=verbs),
            ]
        )

    # --- operations ------------------------------------------------------------------------------

    def _begin(
        self, header: str, end: Any = None, failure: str = "", of: str = ""
    ) -> dict[str, str]:
        name = f"operation-{len(self.operations)}"
        self.operations[name] = {"looks": 0, "end": end, "failure": failure, "of": of}
        path = "monitors" if header == "Azure-AsyncOperation" else "places"
        return {
            header: f"{self.reached}/{path}/{name}?api-version=2026-01-01&t=1",
            "Retry-After": "0",
        }

    def _looked(self, request: Request) -> dict[str, Any]:
        if not self.logins.accepts(request):
            raise AzureRefusalError(401, "InvalidAuthenticationToken")
        if request.query_params.get("t") != "1":
            raise AzureRefusalError(400, "InvalidParameter", "not the address that was given")
        operation = self.operations[request.path_params["name"]]
        self._advance(operation)
        return operation

    def _advance(self, operation: dict[str, Any]) -> None:
        """The second poll finds it done."""
        operation["looks"] += 1
        if operation["looks"] > 1 and operation["end"] is not None:
            operation["end"]()
            operation["end"] = None

    async def _monitor(self, request: Request) -> Response:
        self.calls.append("monitor")
        try:
            self._ordered("monitor", lambda: None)
            operation = self._looked(request)
        except AzureRefusalError as error:
            return JSONResponse(error.body, error.status, error.headers)
        if operation["looks"] == 1:
            return JSONResponse({"status": "InProgress"}, headers={"Retry-After": "0"})
        if not operation["failure"]:
            return JSONResponse({"status": "Succeeded"})
        inner = {"code": operation["failure"], "message": "no"}
        error = {"code": "ResourceOperationFailure", "message": "failed", "details": [inner]}
        return JSONResponse({"status": "Failed", "error": error})

    async def _place(self, request: Request) -> Response:
        self.calls.append("place")
        try:
            operation = self._looked(request)
        except AzureRefusalError as error:
            return JSONResponse(error.body, error.status, error.headers)
        return Response(
            status_code=202 if operation["looks"] == 1 else 204, headers={"Retry-After": "0"}
        )

    # --- resources -------------------------------------------------------------------------------

    async def _api(self, request: Request) -> Response:
        raw = await request.body()
        if not self.logins.accepts(request):
            return JSONResponse(AzureRefusalError(401, "InvalidAuthenticationToken").body, 401)
        await asyncio.sleep(self.latency)
        try:
            self.reached = str(request.base_url).rstrip("/")
            name, at = method_of(request)
            self.calls.append(name)
            body = json.loads(raw) if raw else None
            check_body(name, body)
            answer = self._ordered(name, lambda: self._answer(name, at, request, body))
        except AzureRefusalError as error:
            return JSONResponse(error.body, error.status, error.headers)
        if name in self.silent:
            await asyncio.Event().wait()
        return answer

    def _ordered(self, method: str, act: Any) -> Any:
        """What was ordered for a method's next call, or else what it does."""
        order = next((each for each in self.refusals if each[0] == method), None)
        if order is None:
            return act()
        self.refusals.remove(order)
        if order[2]:
            act()
        raise order[1]

    def _answer(self, method: str, at: dict[str, str], request: Request, body: Any) -> Response:
        if at["subscription"] != SUBSCRIPTION:
            raise AzureRefusalError(404, "SubscriptionNotFound")
        if at.get("group", GROUP) != GROUP:
            raise AzureRefusalError(404, "ResourceGroupNotFound")
        kind, _, verb = method.partition(".")
        match kind, verb:
            case _, "list" | "listAll":
                return self._list(kind, request, verb)
            case _, "get":
                shown = JSONResponse(self._shown(self._found(kind, at["name"]), request))
                for operation in self.operations.values():
                    if operation["end"] is not None and operation["of"] == at["name"]:
                        self._advance(operation)
                return shown
            case "virtualMachines", "createOrUpdate":
                return self._launch(at["name"], request, body)
            case "virtualMachines", "delete":
                return self._remove_machine(at["name"])
            case "virtualMachines", "restart":
                self._found(kind, at["name"])
                return Response(status_code=202, headers=self._begin("Azure-AsyncOperation"))
            case _, "createOrUpdate":
                return self._make(kind, at["name"], body)
            case _:
                return self._remove(kind, at["name"])

    def _found(self, kind: str, name: str) -> dict[str, Any]:
        try:
            return self.resources[kind][name.lower()]
        except KeyError:
            raise AzureRefusalError(404, "ResourceNotFound", f"{name} was not found") from None

    def _shown(self, resource: dict[str, Any], request: Request) -> dict[str, Any]:
        """Without its view, unless that is asked for."""
        if "$expand" in request.query_params:
            return resource
        inner = {k: v for k, v in resource["properties"].items() if k != "instanceView"}
        return resource | {"properties": inner}

    def _list(self, kind: str, request: Request, verb: str) -> Response:
        every = [each for _, each in sorted(self.resources[kind].items())]
        if verb == "listAll":
            shown = self._statuses(every, request)
        else:
            shown = [self._shown(each, request) for each in every]
        first = int(request.query_params.get("$skiptoken", 0))
        answer: dict[str, Any] = {"value": shown[first : first + PAGE_MAX]}
        if len(shown) > first + PAGE_MAX:
            more = request.url.include_query_params(**{"$skiptoken": first + PAGE_MAX})
            answer["nextLink"] = str(more)
        return JSONResponse(answer)

    def _statuses(self, machines: list[dict[str, Any]], request: Request) -> list[dict[str, Any]]:
        """Of the whole subscription: IDs in another case than elsewhere, and the views alone."""
        if request.query_params.get("statusOnly") != "true":
            raise AzureRefusalError(400, "InvalidParameter", "this server lists only statuses")
        if not self.reads_subscription:
            raise AzureRefusalError(403, "AuthorizationFailed", "no right to the subscription")
        return [
            {"id": each["id"].upper(), "properties": {"instanceView": view}}
            for each in machines
            if (view := each["properties"].get("instanceView"))
        ]

    def _id(self, kind: str, name: str) -> str:
        # Azure's ids come back in another case than they were sent.
        space = "Microsoft.Compute" if kind == "virtualMachines" else "Microsoft.Network"
        return f"{HERE}/{space}/{kind}/{name}".replace("resourceGroups", "resourcegroups")

    def _make(self, kind: str, name: str, body: dict[str, Any]) -> Response:
        properties = dict(body["properties"])
        if kind == "publicIPAddresses":
            properties["ipAddress"] = "192.0.2.9"
        else:
            [configuration] = properties["ipConfigurations"]
            inner = configuration["properties"]
            if inner["subnet"]["id"] != SUBNET:
                raise AzureRefusalError(400, "InvalidResourceReference", "no such subnet")
            public = inner.get("publicIPAddress")
            if (
                public is not None
                and _last(public["id"]) not in self.resources["publicIPAddresses"]
            ):
                raise AzureRefusalError(400, "InvalidResourceReference", "no such address")
            inner["privateIPAddress"] = "10.0.0.4"
        made = {"id": self._id(kind, name), "name": name, "properties": properties}
        self.resources[kind][name.lower()] = body | made
        header = "Azure-AsyncOperation" if kind == "networkInterfaces" else "Location"
        return JSONResponse(self.resources[kind][name.lower()], 201, headers=self._begin(header))

    def _remove(self, kind: str, name: str) -> Response:
        if name.lower() not in self.resources[kind]:
            return Response(status_code=204)
        if kind == "networkInterfaces" and self.reserved:
            raise AzureRefusalError(400, "NicReservedForAnotherVm", "for 180 seconds")
        if kind == "networkInterfaces" and self._holder(name):
            raise AzureRefusalError(400, "NicInUse", f"{self._holder(name)} uses it")
        if kind == "publicIPAddresses" and name.lower() in self._attached_addresses():
            raise AzureRefusalError(400, "PublicIPAddressCannotBeDeleted", "an interface uses it")
        del self.resources[kind][name.lower()]
        return Response(status_code=202, headers=self._begin("Location"))

    def _holder(self, nic: str) -> str:
        for name, machine in self.machines.items():
            if nic.lower() in _nics_of(machine):
                return name
        return ""

    def _attached_addresses(self) -> set[str]:
        return {
            _last(configuration["properties"]["publicIPAddress"]["id"])
            for nic in self.resources["networkInterfaces"].values()
            for configuration in nic["properties"]["ipConfigurations"]
            if "publicIPAddress" in configuration["properties"]
        }

    # --- machines --------------------------------------------------------------------------------

    def _launch(self, name: str, request: Request, body: dict[str, Any]) -> Response:
        if name.lower() in self.machines and request.headers.get("If-None-Match") == "*":
            raise AzureRefusalError(412, "PreconditionFailed", f"{name} exists")
        if name.lower() in self.machines:
            raise AzureRefusalError(
                409, "PropertyChangeNotAllowed", "and a launch must not change one"
            )
        check_machine(body)
        for nic in _nics_of(body):
            if nic not in self.resources["networkInterfaces"]:
                raise AzureRefusalError(404, "NetworkInterfaceNotFound", f"no {nic}")
            if self._holder(nic):
                raise AzureRefusalError(400, "NicInUse", f"{self._holder(nic)} uses it")
        failure = self.failures.pop(0) if self.failures else ""
        disk = body["properties"]["storageProfile"]["osDisk"]["name"]
        if disk in self.disks:
            raise AzureRefusalError(409, "Conflict", f"disk {disk} exists")
        made = body | {"id": self._id("virtualMachines", name), "name": name}
        made["properties"] = body["properties"] | {
            "provisioningState": "Creating",
            "vmId": "1",
            "timeCreated": "2026-11-01T10:00:00.1234567+00:00",
            "instanceView": {"statuses": [{"code": "ProvisioningState/creating"}]},
        }
        self.machines[name.lower()] = made
        self.disks.add(disk)

        def end() -> None:
            if failure:
                made["properties"]["provisioningState"] = "Failed"
                code = {"code": f"ProvisioningState/failed/{failure}", "message": "no"}
                made["properties"]["instanceView"] = {"statuses": [code]}
            else:
                self.run(made)

        headers = self._begin("Azure-AsyncOperation", end, failure, name)
        return JSONResponse(made, 201, headers=headers)

    def run(self, machine: dict[str, Any], power: str = "running") -> None:
        """Let it be up, or in another power state."""
        machine["properties"]["provisioningState"] = "Succeeded"
        states = [{"code": "ProvisioningState/succeeded"}, {"code": f"PowerState/{power}"}]
        machine["properties"]["instanceView"] = {"statuses": states}

    def _remove_machine(self, name: str) -> Response:
        machine = self.machines.get(name.lower())
        if machine is None:
            return Response(status_code=204)

        def end() -> None:
            if self.machines.pop(name.lower(), None) is not None:
                self._release(machine)

        machine["properties"]["provisioningState"] = "Deleting"
        if not self.slow_removals:
            end()
        headers = self._begin("Azure-AsyncOperation", end, of=name)
        return Response(status_code=202, headers=headers)

    def _release(self, machine: dict[str, Any]) -> None:
        """What the delete options say goes with it; all else stays, and costs."""
        disk = machine["properties"]["storageProfile"]["osDisk"]
        if disk.get("deleteOption") == "Delete":
            self.disks.discard(disk["name"])
        for reference in machine["properties"]["networkProfile"]["networkInterfaces"]:
            if reference["properties"].get("deleteOption") != "Delete":
                continue
            nic = self.resources["networkInterfaces"].pop(_last(reference["id"]))
            for configuration in nic["properties"]["ipConfigurations"]:
                public = configuration["properties"].get("publicIPAddress", {})
                if public.get("properties", {}).get("deleteOption") == "Delete":
                    del self.resources["publicIPAddresses"][_last(public["id"])]


# --- parts ----------------------------------------------------------------------------------------


def _nics_of(machine: dict[str, Any]) -> list[str]:
    references = machine["properties"]["networkProfile"]["networkInterfaces"]
    return [_last(each["id"]) for each in references]


def _last(path: str) -> str:
    return path.rpartition("/")[2].lower()


@asynccontextmanager
async def serving(identity: str) -> AsyncIterator[AzureServer]:
    """Serve the API on loopback, and the logins by TLS alone, with this certificate and key."""
    api = AzureServer()
    logins = Starlette(routes=api.logins.routes())
    async with (
        serving_app(logins, identity=identity) as api.logins.url,
        serving_app(api.app()) as api.url,
    ):
        yield api
