"""Power control by IPMI 2.0 over LAN, through the command `ipmitool`."""

import asyncio
import os
from contextlib import suppress
from typing import Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import TEXT_CHARS_MAX, ProviderError
from services.provisioner.providers.power_control import Power, PowerOptions, PowerOrder

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


class IpmiPower:
    """One machine's controller."""

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
