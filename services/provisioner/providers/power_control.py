"""Power control of machines that you own: options, cold restart, and Redfish or IPMI.

A GPU that has fallen off the bus rarely comes back by a warm reboot: its slot must lose power. The
operating system is asked to shut down first, and the power is cut where it does not.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import httpx
import msgspec

from schemas.duration import Duration
from schemas.enums import ProviderErrorKind
from schemas.settings import FilePath, Setting
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    TEXT_CHARS_MAX,
    ErrorTable,
    ProviderError,
)
from services.provisioner.providers.provider_http import decode, read_body, send
from services.runtime.bounded_http import bounded_client

Power = Literal["on", "off", "changing"]
PowerOrder = Literal["shut-down", "off", "on"]
"""shut-down: the operating system is asked to; off: at once."""

SHUT_DOWN_SECONDS: Final = 120.0
SWITCH_SECONDS: Final = 60.0
"""For a machine to be off, or on, after an order that does not ask its operating system."""
LOOK_SECONDS: Final = 2.0
OFF_SECONDS: Final = 5.0
"""How long it stays off, so that its cards lose their power."""
ORDERS: Final[dict[PowerOrder, str]] = {"shut-down": "soft", "off": "off", "on": "on"}
PHRASES: Final[tuple[tuple[str, ProviderErrorKind], ...]] = (
    ("rakp 2 hmac is invalid", "AUTH"),
    ("unauthorized name", "AUTH"),
    ("invalid role", "AUTH"),
    ("insufficient privilege", "AUTH"),
    ("password invalid", "AUTH"),
    ("could not open socket", "INVALID"),
    ("address lookup", "INVALID"),
    ("invalid data field in request", "UNSUPPORTED"),
    ("invalid command", "UNSUPPORTED"),
    ("unable to establish ipmi", "NETWORK"),
    ("no response", "NETWORK"),
)
"""What ipmitool writes, in lower case -> kind; the first that is found counts. It ends with 1
whatever has failed."""
POWERED: Final[dict[str, Power]] = {"chassis power is on": "on", "chassis power is off": "off"}
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


class PowerOptions(Setting, frozen=True, kw_only=True):
    """Configures an inventory's machines' controllers: `bmc: {user: …, password_file: …}`."""

    type: Literal["redfish", "ipmi"] = "redfish"
    """redfish: over HTTPS; ipmi: by the command `ipmitool`, IPMI 2.0 over LAN."""
    user: str
    """The login user of every controller; it may switch machines."""
    password_file: FilePath = ""
    """A file with the password, on the provisioner's host."""
    password_env: str = "BMC_PASSWORD"  # noqa: S105 - a variable's name
    """The environment variable with the password, where there is no file."""
    tls_ca_file: FilePath = ""
    """Certificate authority of the controllers; empty: those of the provisioner's host."""
    tls_verify: bool = True
    """false: any certificate is accepted, as most controllers sign their own."""
    ipmi_cipher_suite: Annotated[int, msgspec.Meta(ge=1, le=17)] | None = None
    """Of IPMI; None: the best that the controller lists, which older ones cannot."""
    timeout: Duration = Duration(20)
    """Time limit of one request or command."""


class IpmiPower:
    """Switches one machine through its controller, by IPMI."""

    def __init__(self, address: str, options: PowerOptions, password: str) -> None:
        """`address`: `host`, or `host:port`."""
        host, _, port = address.rpartition(":")
        is_port = bool(host) and port.isdigit()
        self._host, self._port = (host.strip("[]"), port) if is_port else (address.strip("[]"), "")
        self._options = options
        self._password = password

    async def power(self) -> Power:
        """Ask for the chassis's state."""
        lines = (await self._run("status")).lower().splitlines()  # it warns of much before
        return next((POWERED[each] for each in lines if each in POWERED), "changing")

    async def switch(self, order: PowerOrder) -> None:
        """Order it; IPMI accepts an order that changes nothing."""
        await self._run(ORDERS[order])

    async def _run(self, order: str) -> str:
        options = self._options
        port = ("-p", self._port) if self._port else ()
        login = ("-I", "lanplus", "-H", self._host, *port, "-U", options.user, "-E")
        # Its own repetitions end within the time limit, so that its reason is known.
        patience = ("-N", "2", "-R", str(max(1, int(float(options.timeout)) // 4)))
        suite = options.ipmi_cipher_suite
        cipher = ("-C", str(suite)) if suite else ()
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        try:
            process = await asyncio.create_subprocess_exec(
                *("ipmitool", *login, *patience, *cipher, "chassis", "power", order),
                env=environment | {"IPMI_PASSWORD": self._password},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            text = f"ipmitool cannot be started on the provisioner's host: {error.strerror}"
            raise ProviderError("INVALID", text) from error
        try:
            async with asyncio.timeout(float(options.timeout)):
                output = (await process.communicate())[0].decode(errors="replace")
        except TimeoutError as error:
            text = f"the controller {self._host} did not answer within {options.timeout:g} s"
            raise ProviderError("NETWORK", text) from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0:
            return output
        raise self._error(output)

    def _error(self, output: str) -> ProviderError:
        text = " ".join(output.split())[-TEXT_CHARS_MAX:]
        lowered = text.lower()
        kind = next((kind for phrase, kind in PHRASES if phrase in lowered), None)
        unknown = "" if kind else "ipmitool"
        where = f"the controller {self._host}"
        return ProviderError(kind or "TRANSIENT", f"{where}: {text or 'no text'}", unknown=unknown)


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
    """Switches one machine through its controller, by Redfish.

    A controller has one system, or several in a chassis: then the inventory names which. Nothing is
    kept between two requests; a login is sent with each.
    """

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


PowerControl = RedfishPower | IpmiPower
"""`switch` gives an order, which takes effect later; both calls raise ProviderError."""


async def restart_cold(
    name: str, control: PowerControl, sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Switch a machine off and on; one that is off is switched on. It may be called twice."""
    if not await _reaches("off", 0.0, control, sleep):
        try:
            await control.switch("shut-down")
            is_off = await _reaches("off", SHUT_DOWN_SECONDS, control, sleep)
        except ProviderError as error:
            if error.rule.in_doubt:
                raise
            is_off = False  # not every controller can ask the operating system
        if not is_off:
            await control.switch("off")
            is_off = await _reaches("off", SWITCH_SECONDS, control, sleep)
        if not is_off:
            text = f"{name} is still on {SWITCH_SECONDS:.0f} s after its controller was to cut it"
            raise ProviderError("TRANSIENT", text)
    await sleep(OFF_SECONDS)
    await control.switch("on")
    if not await _reaches("on", SWITCH_SECONDS, control, sleep):
        text = f"{name} is still off {SWITCH_SECONDS:.0f} s after its controller was to start it"
        raise ProviderError("TRANSIENT", text)


async def _reaches(
    wanted: Power,
    seconds: float,
    control: PowerControl,
    sleep: Callable[[float], Awaitable[None]],
) -> bool:
    waited = 0.0
    while await control.power() != wanted:
        if waited >= seconds:
            return False
        await sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS
    return True
