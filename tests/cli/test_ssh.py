"""`navarch ssh`: which node a name selects, and the ssh command with its pinned key."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec, SetupSettings
from services.cli.commands.ssh_command import (
    command_line,
    known_hosts,
    local_shell,
    select_instance,
)
from services.primitives.errors import NavarchError
from services.provisioner.instances import instance_decisions

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9, ssh_user="ubuntu")


def instance(name: str, pool: str = "web", **changes: Any) -> InstanceRecord:
    """Return a running instance."""
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t")
    made = instance_decisions.intended_record(pool, name, launch, "saga", NOW)
    return replace(made, state="running", **({"address": "10.0.0.7"} | changes))


RUNNING = [
    instance("web-10-aaaa"),
    instance("web-2-bbbb"),
    instance("web-2", pool="other"),
    instance("web-0-1-cccc", pool="web-0"),
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("web-10-aaaa", "web-10-aaaa"),
        ("web", "web-2-bbbb"),
        ("web-1", "web-10-aaaa"),
        ("web-2", "web-2"),
        ("web-0", "web-0-1-cccc"),
    ],
)
def test_a_name_selects_a_node_then_a_pool_then_the_nth_of_a_pool(name: str, found: str) -> None:
    """Nodes are counted from 0, in the order of the numbers in their names."""
    assert found == select_instance(RUNNING, name).instance


@pytest.mark.parametrize("name", ["web-7", "n9", "web-", ""])
def test_an_unknown_name_is_refused(name: str) -> None:
    """The error names the command that lists instances, or those that begin with the name."""
    said = "several running instances: web-0-1-cccc, web-1" if name == "web-" else "see navarch l"
    with pytest.raises(NavarchError, match=said):
        select_instance(RUNNING, name)


def test_an_address_may_name_its_port(tmp_path: Path) -> None:
    """Addresses of containers and owned machines name their port."""
    words = command_line(instance("web-1", address="gpu-7:2201"), SPEC, tmp_path / "known", [])
    assert ["-p", "2201", "--", "ubuntu@gpu-7"] == words[-4:]


def test_only_the_pinned_key_is_accepted(tmp_path: Path) -> None:
    """The key is pinned under the node's own name: another machine at its address is refused."""
    key = tmp_path / "key"
    key.touch()
    record = instance("web-1", host_key="ssh-ed25519 AAAA")
    spec = replace(SPEC, ssh_private_key_path=str(key), setup=SetupSettings(port=2222))
    known = known_hosts(record, tmp_path)
    words = command_line(record, spec, known, ["nvidia-smi", "-L"])

    assert "web-1 ssh-ed25519 AAAA\n" == known.read_text()
    assert (
        f"ssh -o HostKeyAlias=web-1 -o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes "
        f"-o HashKnownHosts=no -i {key} -o IdentitiesOnly=yes -p 2222 -- "
        "ubuntu@10.0.0.7 nvidia-smi -L"
    ).split() == words


def test_an_unknown_host_key_is_pinned_at_the_first_connection(tmp_path: Path) -> None:
    """The program `ssh` pins the key in the node's own file.

    Missing private keys are not passed.
    """
    spec = replace(SPEC, ssh_private_key_path="/nowhere/key")
    words = command_line(instance("web-1"), spec, tmp_path / "known", [])

    assert "StrictHostKeyChecking=accept-new" in words
    assert "-i" not in words


def test_a_node_without_an_address_cannot_be_entered(tmp_path: Path) -> None:
    """The error names the command to run."""
    with pytest.raises(
        NavarchError, match="has not reported an address of web-1 yet: navarch why web-1"
    ):
        command_line(instance("web-1", address=""), SPEC, tmp_path / "known", [])


def test_a_local_node_gets_a_shell_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local node has no SSH server; its files belong to the same user."""
    monkeypatch.setenv("SHELL", "/bin/dash")

    assert ["sh", "-c", f"cd {tmp_path} && exec /bin/dash"] == local_shell(tmp_path, ())
    assert ["sh", "-c", f"cd {tmp_path} && cat kmsg"] == local_shell(tmp_path, ("cat", "kmsg"))
