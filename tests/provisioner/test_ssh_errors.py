"""Faults of SSH machines and of their inventory have clear errors."""

from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest

from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import ssh_claims, ssh_errors
from services.provisioner.providers.ssh import SshProvider
from services.provisioner.providers.ssh_claims import ClaimReport
from services.provisioner.providers.ssh_inventory import InventoryMachine, SshInventory
from tests.provisioner.provisioner_parts import request
from tests.provisioner.ssh_machines import Machines, written

Make = Callable[..., SshProvider]


@pytest.fixture
def make(make_ssh: Make) -> Make:
    """Makes the provider again."""
    return make_ssh


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (asyncssh.HostKeyNotVerifiable("other"), "AUTH"),
        (asyncssh.PermissionDenied("no"), "AUTH"),
        (asyncssh.KeyImportError("bad"), "INVALID"),
        (asyncssh.KeyEncryptionError("locked"), "INVALID"),
        (FileNotFoundError(2, "No such file"), "INVALID"),
        (PermissionError(13, "denied"), "INVALID"),
        (asyncssh.ConnectionLost("gone"), "TRANSIENT"),
        (asyncssh.DisconnectError(11, "bye"), "TRANSIENT"),
        (asyncssh.ChannelOpenError(1, "no"), "TRANSIENT"),
        (TimeoutError(), "NETWORK"),
        (ConnectionRefusedError(111, "refused"), "NETWORK"),
        (OSError(113, "No route to host"), "NETWORK"),
    ],
)
def test_everything_that_a_connection_raises_has_its_kind(raised: Exception, kind: str) -> None:
    """Each exception of a connection has one row, with the machine's name."""
    error = ssh_errors.of_exception("gpu-7", raised)
    assert (kind, True) == (error.kind, error.message.startswith("gpu-7 "))
    assert "not known here" not in error.message


@pytest.mark.parametrize(
    ("status", "output", "kind", "says"),
    [
        (73, "mkdir: Read-only file system", "UNSUPPORTED", "Read-only file system"),
        (75, "", "TRANSIENT", "lock"),
        (126, "", "INVALID", "not executable"),
        (127, "flock: not found", "INVALID", "flock: not found"),
        (1, "sudo: a password is required", "AUTH", "set `sudo: false`"),
        (9, "what?", "TRANSIENT", "unknown status"),
    ],
)
def test_every_way_in_which_a_script_ends_has_its_kind(
    status: int, output: str, kind: str, says: str
) -> None:
    """One row each; what is not known says so."""
    error = ssh_errors.of_status("gpu-7", status, output)
    assert (kind, True) == (error.kind, says in error.message)


def test_what_is_raised_and_not_known_is_transient() -> None:
    """An unknown exception is transient, and the error says that it is unknown."""
    error = ssh_errors.of_exception("gpu-7", ZeroDivisionError("x"))
    assert ("TRANSIENT", True) == (error.kind, "unknown error" in error.message)
    assert "ZeroDivisionError" == error.unknown


async def test_a_private_key_that_cannot_be_used_is_said(
    owned: Machines, make: Make, tmp_path: Path
) -> None:
    """A private key that is missing, no key at all, or one with a passphrase is named."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(
        str(tmp_path / "locked"), "pkcs8-pem", passphrase="secret"
    )
    (tmp_path / "rubbish").write_text("rubbish")
    for name, says in (
        ("none", "does not exist"),
        ("rubbish", "cannot be"),
        ("locked", "[Pp]assphrase"),
    ):
        with pytest.raises(ProviderError, match=f"private key .*{says}") as refused:
            await make(key_file=str(tmp_path / name), machines=owned.inventory()[:1]).list()
        assert "INVALID" == refused.value.kind


async def test_claims_are_made_as_root(owned: Machines, make: Make) -> None:
    """Another user claims with sudo; a user without the right is shown what to change."""
    for box in owned.boxes.values():
        sudo = box.home / "bin" / "sudo"
        sudo.parent.mkdir()
        sudo.write_text(
            f'#!/bin/sh\n[ "$1" = -n ] && shift && echo "$1" >> {box.home}/as-root && "$@"'
        )
        sudo.chmod(0o755)
    made = await make(sudo=True).provision(request(gpu_count=0))
    assert {made.host: "held"} == owned.claims()
    assert {"bash"} == set((owned.boxes[made.host].home / "as-root").read_text().split())
    for box in owned.boxes.values():
        (box.home / "bin" / "sudo").write_text("#!/bin/sh\necho sudo: no password >&2; exit 1\n")
    with pytest.raises(ProviderError, match="set `sudo: false` and a `claim_folder`") as refused:
        await make(sudo=True).list()
    assert "AUTH" == refused.value.kind


async def test_a_machine_that_cannot_be_written_is_passed_over(owned: Machines, make: Make) -> None:
    """The next one is taken; it is named where none is left."""
    for box in list(owned.boxes.values())[1:]:
        (box.home / "claim").write_text("a file in the way")
    made = await make().provision(request(gpu_count=0))
    assert "gpu-000" == made.host
    with pytest.raises(ProviderError, match=r"1 are claimed, 7 cannot be used \(UNSUPPORTED: gpu"):
        await make().provision(request("web-2", gpu_count=0))


def test_output_of_other_programs_is_overlooked() -> None:
    """Shells greet; an answer without its end is none."""
    greeting = "Welcome!\nnavarch: state free\nnavarch: end\n"
    assert ClaimReport(state="free") == ssh_claims.read(greeting)
    assert ssh_claims.read("Welcome!\nnavarch: state free") is None


# --- the inventory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("machines: []\n", ":1: machines: names no machine"),
        ("", ":1: (the whole file): `machines` is missing; add it"),
        ("machines:\n  - host: a\n", ":2: machines.0: `type` is missing; add it"),
        (
            "machines:\n  - host: a\n    typ: x\n",
            ":3: machines.0.typ: unknown key; did you mean `type`?",
        ),
        ("machines:\n  - {host: a, type: x}\n  - host: a\n    type: x\n", ":3: machines.1"),
        ("machines:\n  - host: a b\n    type: x\n", ":2: machines.0.name: 'a b' is not a name"),
        ("machines:\n  - host: a\n    type: x\n    port: 0\n", ":4: machines.0.port"),
        (
            "machines:\n  - host: a\n    type: x\n    host_key: b\n",
            ":4: machines.0.host_key: is no",
        ),
        ("machines: [\n", ":2: not valid YAML"),
    ],
)
def test_what_is_wrong_in_an_inventory_is_said_with_its_place(
    tmp_path: Path, text: str, says: str
) -> None:
    """The error names file, line and key."""
    file = tmp_path / "machines.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        SshInventory("racks", (), str(file))
    assert f"{file}{says}" in str(refused.value)


@pytest.mark.parametrize(
    ("machines", "file", "says"),
    [
        ((), "", "either under `machines`, or in the file"),
        ((InventoryMachine(host="a", type="x"),), "f", "either under `machines`, or in the file"),
        (
            (InventoryMachine(host="a", type="x"),) * 2,
            "",
            "providers.racks.machines.1.name: a is machine 0",
        ),
        ((), "/nowhere/machines.yaml", "/nowhere/machines.yaml: providers.racks.inventory"),
    ],
)
def test_machines_are_named_in_one_place(
    machines: tuple[InventoryMachine, ...], file: str, says: str
) -> None:
    """A machine that is named twice, or in two places, is refused."""
    with pytest.raises(ConfigurationError, match=says):
        SshInventory("racks", machines, file)


async def test_an_inventory_that_is_broken_later_is_an_error_and_no_shorter_list(
    owned: Machines, make: Make, tmp_path: Path
) -> None:
    """A broken inventory lets nothing be concluded until it is repaired."""
    file = tmp_path / "machines.yaml"
    file.write_text(written(owned.inventory()))
    provider = make(inventory=str(file))
    await provider.provision(request(gpu_count=0))
    file.write_text("machines: []\n")
    with pytest.raises(ProviderError, match=r"machines\.yaml:1: machines: names no machine") as bad:
        await provider.list()
    assert "INVALID" == bad.value.kind
    file.write_text(written(owned.inventory()))
    assert 1 == len(await provider.list())


def test_a_machine_without_a_key_is_refused(make: Make) -> None:
    """The refusal comes at the start, with the option to set."""
    with pytest.raises(ConfigurationError, match=r"providers\.fake\.key_file: no private key for"):
        make(key_file="")
