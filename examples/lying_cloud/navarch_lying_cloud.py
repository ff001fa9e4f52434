"""The provider lying-cloud of Navarch: an HTTP API that does not do what it says.

    providers:
      lying: {type: lying-cloud, url: "https://api.lying.example"}

README.md has a table of the lies; each one is named here where the provider meets it.
"""

import re
from typing import Final

import httpx
import msgspec
from navarch.schemas.settings import Setting
from navarch.services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from navarch.services.provisioner.provider_client.provider_errors import (
    ErrorTable,
    ProviderError,
    none_if,
    unreadable,
)

ID: Final = re.compile(r"m-[0-9]+")
PAGES_MAX: Final = 1_000
TRIES_MAX: Final = 5
"""Lists until one is whole, and removals until one is done."""
TIMEOUT_SECONDS: Final = 10.0
NOT_FOUND: Final = 404
DELETED: Final = "deleted"
STATUSES: Final[dict[str, InstanceStatus]] = {"building": "pending", "deleting": "stopping"}
"""Any other word counts as running: the machine may cost money."""
ERRORS: Final = ErrorTable(
    codes={"sold-out": "CAPACITY", "limit": "QUOTA", "no-such-type": "INVALID", "key": "AUTH"}
)
Instances = list[Instance]


class Machine(msgspec.Struct, kw_only=True):
    """A machine as the cloud describes it."""

    id: str
    type: str
    status: str
    region: str = ""
    tags: dict[str, str] = {}


class Failure(msgspec.Struct, kw_only=True):
    """An error as the cloud describes it."""

    code: str
    message: str = ""


class Answer(msgspec.Struct, kw_only=True):
    """Holds any answer of the cloud."""

    error: Failure | None = None
    machine: Machine | None = None
    machines: tuple[Machine, ...] = ()
    next: int | None = None
    total: int = 0
    """Machines that are not deleted, on all pages."""


class LyingCloud:
    """Launches, removes and lists machines."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what a configuration sets."""

        url: str
        list_lag_seconds: float = 5.0
        """How long after its request a new machine may be missing from the list."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        """Open nothing: a connection is made by the first call."""
        self.name = environment.name
        self.capabilities = Capabilities(list_lag_seconds=options.list_lag_seconds)
        self._http = httpx.AsyncClient(base_url=options.url, timeout=TIMEOUT_SECONDS)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch a machine, or return the one that this token has launched already."""
        if found := await self._find(request.token):
            return found  # the cloud has no idempotency token
        tags = {"name": request.name, "fleet": request.fleet}
        tags |= {"pool": request.pool, "token": request.token}
        body = {"type": request.instance_type, "region": request.region, "tags": tags}
        try:
            answer = await self._call("POST", "/machines", body)
        except ProviderError as error:
            found = await self._find(request.token) if error.rule.in_doubt else None
            if found is None:
                raise
            return found  # it answered 500, and has made the machine
        if answer.machine is None:
            raise ProviderError("TRANSIENT", "the launch was accepted and names no machine")
        return _instance(answer.machine)

    async def terminate(self, provider_id: str) -> None:
        """Remove a machine; success if there is none."""
        if not ID.fullmatch(provider_id):
            return  # the cloud would take M-1 for m-1
        place = f"/machines/{provider_id}"
        for _ in range(TRIES_MAX):
            await none_if(self._call("DELETE", place), NOT_FOUND)
            left = await none_if(self._call("GET", place), NOT_FOUND)
            if left is None or left.machine is None or left.machine.status == DELETED:
                return
        raise ProviderError("TRANSIENT", f"{provider_id} is still there after {TRIES_MAX} removals")

    async def list(self) -> Instances:
        """Return every machine that may still cost money."""
        for _ in range(TRIES_MAX):
            machines, total = await self._pages()
            if len(machines) == total:
                return [_instance(each) for each in machines.values()]
        problem = f"the list has {len(machines)} machines, and the cloud says {total}"
        raise ProviderError("TRANSIENT", problem)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _find(self, token: str) -> Instance | None:
        return next((each for each in await self.list() if each.token == token), None)

    async def _pages(self) -> tuple[dict[str, Machine], int]:
        """Return the machines by ID, each once and without deleted ones, and their number."""
        machines: dict[str, Machine] = {}
        cursor = 0
        for _ in range(PAGES_MAX):
            answer = await self._call("GET", f"/machines?cursor={cursor}")
            machines |= {each.id: each for each in answer.machines if each.status != DELETED}
            if answer.next is None:
                return machines, answer.total
            cursor = answer.next
        raise ProviderError("TRANSIENT", f"the list has more than {PAGES_MAX} pages")

    async def _call(self, method: str, path: str, body: object = None) -> Answer:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            problem = f"{method} {path}: {error or type(error).__name__}"
            raise ProviderError("TRANSIENT", problem) from error
        try:
            answer = msgspec.json.decode(response.content, type=Answer)
        except msgspec.MsgspecError:
            answer = Answer(error=Failure(code="", message=unreadable(response.content)))
        if answer.error is not None:  # also where the status is 200
            raise ERRORS.error(response.status_code, answer.error.code, answer.error.message)
        return answer


def _instance(machine: Machine) -> Instance:
    tags = machine.tags
    return Instance(
        name=tags.get("name", machine.id),
        provider_id=machine.id,
        status=STATUSES.get(machine.status, "running"),
        fleet=tags.get("fleet", ""),
        pool=tags.get("pool", ""),
        token=tags.get("token", ""),
        instance_type=machine.type,
        region=machine.region,
        tags=tags,
    )
