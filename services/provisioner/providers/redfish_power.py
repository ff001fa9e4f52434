"""Power control by Redfish (DMTF DSP0266): a system's `PowerState`, and its action `Reset`.

A controller has one system, or several in a chassis: then the inventory names which. Nothing is
kept between two requests; a login is sent with each.
"""

import ssl
from typing import Any, Final

import httpx
import msgspec

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    ErrorTable,
    ProviderError,
)
from services.provisioner.providers.power_control import Power, PowerOptions, PowerOrder
from services.provisioner.providers.provider_http import decode, read_body, send
from services.runtime.bounded_http import bounded_client

SYSTEMS: Final = "/redfish/v1/Systems"
ANSWER_BYTES_MAX: Final = 1_048_576
RESETS: Final[dict[PowerOrder, tuple[str, ...]]] = {
    "shut-down": ("GracefulShutdown",),
    "off": ("ForceOff",),
    "on": ("On", "ForceOn"),
}
"""Order -> the reset types that carry it out; the first that the system allows is used."""
POWERS: Final[dict[str, Power]] = {"On": "on", "Off": "off"}
"""PowerState -> ours; the others are on the way between these."""
CODES: Final[dict[str, ProviderErrorKind]] = {
    "ServiceTemporarilyUnavailable": "TRANSIENT",
    "ServiceShuttingDown": "TRANSIENT",
    "ResourceInUse": "TRANSIENT",
    "ResourceNotFound": "INVALID",
    "InsufficientPrivilege": "AUTH",
    "NoValidSession": "AUTH",
    "ActionNotSupported": "UNSUPPORTED",
    "ActionParameterNotSupported": "UNSUPPORTED",
    "ActionParameterValueNotInList": "UNSUPPORTED",
}
"""Last word of a message ID of DMTF's registry Base -> kind."""
TABLE: Final = ErrorTable(
    codes=CODES,
    statuses={**COMMON_STATUSES, 400: "INVALID", 405: "UNSUPPORTED", 409: "TRANSIENT"},
    throttled_first=False,
)


class _Link(msgspec.Struct, frozen=True):
    odata_id: str = msgspec.field(name="@odata.id", default="")


class _Collection(msgspec.Struct, frozen=True):
    Members: tuple[_Link, ...] = ()


class _Reset(msgspec.Struct, frozen=True):
    target: str = ""
    allowed: tuple[str, ...] = msgspec.field(name="ResetType@Redfish.AllowableValues", default=())


class _Actions(msgspec.Struct, frozen=True):
    reset: _Reset = msgspec.field(name="#ComputerSystem.Reset", default=_Reset())


class _System(msgspec.Struct, frozen=True):
    PowerState: str | None = None
    Actions: _Actions = _Actions()


class RedfishPower:
    """One machine's controller."""

    def __init__(self, address: str, system: str, options: PowerOptions, password: str) -> None:
        """`system`: its ID, where the controller has several."""
        self._address = address
        self._system = system
        self._options = options
        self._password = password

    async def power(self) -> Power:
        """Ask for the system's state."""
        async with self._client() as client:
            found = (await self._read(client))[1]
        return POWERS.get(found.PowerState or "", "changing")

    async def switch(self, order: PowerOrder) -> None:
        """Post the action with a reset type that the system allows."""
        async with self._client() as client:
            path, found = await self._read(client)
            reset = found.Actions.reset
            wanted = [each for each in RESETS[order] if not reset.allowed or each in reset.allowed]
            if not reset.target or not wanted:
                allowed = ", ".join(reset.allowed) or "nothing"
                text = f"{self._address}: {path} allows no {RESETS[order][0]}, but {allowed}"
                raise ProviderError("UNSUPPORTED", text)
            await self._send(client, "POST", reset.target, json={"ResetType": wanted[0]})

    def _client(self) -> httpx.AsyncClient:
        options = self._options
        return bounded_client(
            bytes_max=ANSWER_BYTES_MAX,
            base_url=f"https://{self._address}",
            auth=(options.user, self._password),
            verify=_trusted(options),
            timeout=float(options.timeout),
            headers={"OData-Version": "4.0", "Accept": "application/json"},
        )

    async def _read(self, client: httpx.AsyncClient) -> tuple[str, _System]:
        answer = await self._send(client, "GET", SYSTEMS)
        paths = [each.odata_id for each in decode(answer, _Collection, SYSTEMS).Members]
        named = [each for each in paths if each.rstrip("/").rpartition("/")[2] == self._system]
        found = named if self._system else paths
        if len(found) != 1:
            shown = ", ".join(paths) or "none"
            text = f"{self._address} has these systems: {shown}; name one of them as `bmc_system`"
            raise ProviderError("INVALID", text)
        return found[0], decode(await self._send(client, "GET", found[0]), _System, found[0])

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, **request: Any
    ) -> httpx.Response:
        if not path.startswith("/"):
            raise ProviderError("INVALID", f"{self._address} names no path, but {path[:80]!r}")
        answer = await send(client, method, path, **request)
        if answer.is_success:
            return answer
        code, text = _error_of(read_body(answer))
        raise TABLE.error(answer.status_code, code, f"{self._address}: {text}")


def _trusted(options: PowerOptions) -> ssl.SSLContext | bool:
    if not options.tls_verify:
        return False
    file = options.tls_ca_file
    try:
        return ssl.create_default_context(cafile=file) if file else True
    except OSError as error:  # ssl.SSLError is one
        raise ProviderError(
            "INVALID", f"bmc.tls_ca_file: {file} cannot be used: {error}"
        ) from error


def _error_of(body: Any) -> tuple[str, str]:
    """The code of an error without its registry, and its text."""
    error = body.get("error", {}) if isinstance(body, dict) else {}
    found = error.get("@Message.ExtendedInfo") if isinstance(error, dict) else None
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    code = str(first.get("MessageId") or error.get("code") or "").rpartition(".")[2]
    return code, str(first.get("Message") or error.get("message") or "no text")
