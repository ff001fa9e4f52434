"""Machines are switched off and on by their controllers: by Redfish, and by any other alike."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from services.cli.certificates import new_authority, new_certificate, new_key
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider import Environment, Instance
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import power_control
from services.provisioner.providers.power_control import (
    SHUT_DOWN_SECONDS,
    SWITCH_SECONDS,
    IpmiPower,
    Power,
    PowerOptions,
    PowerOrder,
    RedfishPower,
    restart_cold,
)
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.providers.ssh_inventory import InventoryMachine
from tests.provisioner.provisioner_parts import FLEET
from tests.provisioner.redfish_server import PASSWORD, USER, RedfishServer, serving
from tests.provisioner.ssh_machines import new_key as new_ssh_key


class Waits:
    """A clock that only counts."""

    def __init__(self) -> None:
        """Nothing was waited for yet."""
        self.seconds = 0.0

    async def sleep(self, seconds: float) -> None:
        """Count the seconds without waiting."""
        self.seconds += seconds


class Controller:
    """A controller whose machine obeys some orders, after some looks."""

    def __init__(self, power: Power, obeys: tuple[str, ...], looks: int = 0) -> None:
        """`looks`: so many show the power on its way."""
        self._power, self._obeys, self._looks = power, obeys, looks
        self.orders: list[PowerOrder] = []
        self._left = 0

    async def power(self) -> Power:
        """Return the power, after some reads in which it changes."""
        self._left -= 1
        return self._power if self._left < 0 else "changing"

    async def switch(self, order: PowerOrder) -> None:
        """Obey, or not."""
        self.orders.append(order)
        if f"refuses {order}" in self._obeys:
            raise ProviderError("UNSUPPORTED", order)
        if order in self._obeys:
            self._power, self._left = ("on" if order == "on" else "off"), self._looks


@pytest.mark.parametrize(
    ("power", "obeys", "looks", "orders"),
    [
        ("on", ("shut-down", "off", "on"), 3, ["shut-down", "on"]),
        ("on", ("off", "on"), 3, ["shut-down", "off", "on"]),
        ("on", ("refuses shut-down", "off", "on"), 0, ["shut-down", "off", "on"]),
        ("off", ("shut-down", "off", "on"), 3, ["on"]),
    ],
)
async def test_a_machine_is_shut_down_or_cut_and_comes_back(
    power: Power, obeys: tuple[str, ...], looks: int, orders: list[str]
) -> None:
    """One that is off already, as after a crash in between, is switched on."""
    controller, waits = Controller(power, obeys, looks), Waits()
    await restart_cold("gpu-1", controller, waits.sleep)
    assert (controller.orders, await controller.power()) == (orders, "on")
    assert waits.seconds <= SHUT_DOWN_SECONDS + 2 * SWITCH_SECONDS


@pytest.mark.parametrize(
    ("obeys", "words"), [((), "still on"), (("off",), "still off"), (("off", "refuses on"), "on")]
)
async def test_a_machine_that_does_not_obey_is_an_error(obeys: tuple[str, ...], words: str) -> None:
    """The waits have their limits."""
    waits = Waits()
    with pytest.raises(ProviderError, match=words):
        await restart_cold("gpu-1", Controller("on", obeys), waits.sleep)
    assert waits.seconds <= SHUT_DOWN_SECONDS + 2 * SWITCH_SECONDS + 10


# --- Redfish -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority, and a server's certificate of it."""
    folder, key = tmp_path_factory.mktemp("tls"), new_key()
    now = datetime.now(UTC)
    root = new_authority("test", key, now)
    (folder / "ca.pem").write_text(root)
    (folder / "server.pem").write_text(new_certificate(root, key, "bmc", ["127.0.0.1"], now))
    return folder


@pytest.fixture
async def bmc(authority: Path) -> AsyncIterator[RedfishServer]:
    """Serve a power controller."""
    async with serving(str(authority / "server.pem")) as server:
        yield server


@pytest.fixture
def options(authority: Path) -> PowerOptions:
    """Return the options that log in to the controller."""
    return PowerOptions(user=USER, tls_ca_file=str(authority / "ca.pem"))


def redfish(bmc: RedfishServer, options: PowerOptions, **changes: str) -> RedfishPower:
    """Return a client of the controller."""
    about = {"system": "", "password": PASSWORD} | changes
    return RedfishPower(bmc.address, about["system"], options, about["password"])


@pytest.mark.parametrize("hung", [False, True])
async def test_a_machine_is_switched_off_and_on_by_redfish(
    bmc: RedfishServer, options: PowerOptions, hung: bool
) -> None:
    """The operating system is asked first; where it does not shut down, the power is cut."""
    bmc.hung = hung
    await restart_cold("gpu-1", redfish(bmc, options), Waits().sleep)
    cut = ["ForceOff"] if hung else []
    assert (bmc.resets, bmc.power) == (["GracefulShutdown", *cut, "On"], "On")


async def test_only_what_the_system_allows_is_asked_for(
    bmc: RedfishServer, options: PowerOptions
) -> None:
    """A system that lists no types may be asked for any type of the schema."""
    bmc.allowable = ("ForceOn", "ForceOff")
    await restart_cold("gpu-1", redfish(bmc, options), Waits().sleep)
    bmc.allowable = ()
    await redfish(bmc, options).switch("shut-down")
    assert bmc.resets == ["ForceOff", "ForceOn", "GracefulShutdown"]
    bmc.allowable = ("Nmi",)
    with pytest.raises(ProviderError, match="allows no ForceOff, but Nmi") as refused:
        await redfish(bmc, options).switch("off")
    assert refused.value.kind == "UNSUPPORTED"


async def test_of_several_systems_the_inventory_names_one(
    bmc: RedfishServer, options: PowerOptions
) -> None:
    """No system is switched by guess."""
    bmc.systems = ["Node1", "Node2", "HGX_Baseboard_0"]
    with pytest.raises(ProviderError, match="HGX_Baseboard_0; name one") as error:
        await redfish(bmc, options).power()
    assert error.value.kind == "INVALID"
    with pytest.raises(ProviderError, match="bmc_system"):
        await redfish(bmc, options, system="Node").power()
    assert await redfish(bmc, options, system="Node2").power() == "on"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ((503, "ServiceTemporarilyUnavailable"), "TRANSIENT"),
        ((403, "InsufficientPrivilege"), "AUTH"),
        ((400, "ActionParameterNotSupported"), "UNSUPPORTED"),
        ((409, "ResourceInUse"), "TRANSIENT"),
        ((500, "InternalError"), "TRANSIENT"),
    ],
)
async def test_errors_have_their_kind(
    bmc: RedfishServer, options: PowerOptions, fault: tuple[int, str], kind: str
) -> None:
    """An error has its kind by the registry's message, else by the status."""
    bmc.faults = [fault]
    with pytest.raises(ProviderError) as error:
        await redfish(bmc, options).switch("off")
    assert error.value.kind == kind


async def test_a_wrong_login_and_a_foreign_certificate_are_refused(
    bmc: RedfishServer, options: PowerOptions
) -> None:
    """The password goes to no controller whose certificate is not accepted."""
    with pytest.raises(ProviderError) as wrong:
        await redfish(bmc, options, password="x").power()
    assert (wrong.value.kind, "x" in str(wrong.value).split()) == ("AUTH", False)
    with pytest.raises(ProviderError, match="certificate verify failed") as foreign:
        await redfish(bmc, PowerOptions(user=USER)).power()
    assert foreign.value.kind == "TRANSIENT"
    assert await redfish(bmc, PowerOptions(user=USER, tls_verify=False)).power() == "on"


# --- the provider --------------------------------------------------------------------------------


def provider(tmp_path: Path, bmc: dict[str, Any] | None, machine: dict[str, Any]) -> SshProvider:
    """Machines of one's own, one of which is known."""
    new_ssh_key(tmp_path / "key")
    known = {"host": "127.0.0.1", "name": "gpu-1", "type": "h100"} | machine
    options = SshProvider.Options(
        machines=(InventoryMachine(**known),),
        key_file=str(tmp_path / "key"),
        bmc=PowerOptions(**bmc) if bmc else None,
    )
    environment = Environment(
        name="racks", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
    )
    return SshProvider(options=options, environment=environment)


async def test_machines_of_one_s_own_are_switched_by_their_controllers(
    bmc: RedfishServer, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines whose controller the inventory names are switched; they need not answer."""
    monkeypatch.setattr(power_control, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(power_control, "OFF_SECONDS", 0.0)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    login = {
        "user": USER,
        "password_file": str(tmp_path / "password"),
        "tls_ca_file": str(authority / "ca.pem"),
    }
    instance = Instance(name="web-1", provider_id="gpu-1:token")
    racks = provider(tmp_path, login, {"bmc": bmc.address})
    assert racks.can_restart_cold(instance)
    await racks.restart_cold(instance)
    assert bmc.resets == ["GracefulShutdown", "On"]
    assert not racks.can_restart_cold(Instance(name="web-2", provider_id="gpu-9:token"))
    assert not provider(tmp_path, login, {}).can_restart_cold(instance)
    with pytest.raises(ProviderError, match="no `bmc`"):
        await provider(tmp_path, login, {}).restart_cold(instance)
    with pytest.raises(ConfigurationError, match="gpu-1 has a `bmc`: set the login"):
        provider(tmp_path, None, {"bmc": bmc.address})


def test_a_login_without_password_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable, and where to write a file instead."""
    monkeypatch.delenv("BMC_PASSWORD", raising=False)
    with pytest.raises(ConfigurationError, match="BMC_PASSWORD is not set"):
        provider(tmp_path, {"user": USER}, {"bmc": "127.0.0.1"})


async def test_without_ipmitool_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing ipmitool is an error, as it is a program of the provisioner's host."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProviderError, match="ipmitool cannot be started") as error:
        await IpmiPower("127.0.0.1", PowerOptions(type="ipmi", user=USER), "x").power()
    assert error.value.kind == "INVALID"
