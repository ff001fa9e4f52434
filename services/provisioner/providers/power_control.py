"""Power control of machines that you own: options, and the cold restart by any controller.

A GPU that has fallen off the bus rarely comes back by a warm reboot: its slot must lose power. The
operating system is asked to shut down first, and the power is cut where it does not.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Literal, Protocol

import msgspec

from schemas.duration import Duration
from schemas.settings import FilePath, Setting
from services.provisioner.provider_client.provider_errors import ProviderError

Power = Literal["on", "off", "changing"]
PowerOrder = Literal["shut-down", "off", "on"]
"""shut-down: the operating system is asked to; off: at once."""

SHUT_DOWN_SECONDS: Final = 120.0
SWITCH_SECONDS: Final = 60.0
"""For a machine to be off, or on, after an order that does not ask its operating system."""
LOOK_SECONDS: Final = 2.0
OFF_SECONDS: Final = 5.0
"""How long it stays off, so that its cards lose their power."""


class PowerOptions(Setting, frozen=True, kw_only=True):
    """`bmc: {user: …, password_file: …}`: the controllers of an inventory's machines."""

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


class PowerControl(Protocol):
    """A machine's controller."""

    async def power(self) -> Power:
        """Whether the machine is on, or raise ProviderError."""
        ...

    async def switch(self, order: PowerOrder) -> None:
        """Give an order, which takes effect later; raise ProviderError if it is refused."""
        ...


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
