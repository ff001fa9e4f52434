"""Names that would reach a file, a command, a key or a label are refused when they are decoded."""

import json
import re
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from msgspec.structs import replace

from schemas.duration import decode_hook
from schemas.evidence_bundles import EvidenceBundle
from schemas.fleet_queries import NodeView, PoolView
from schemas.instance_records import InstanceRecord
from schemas.messages import Invalid, LimitedDecoder, UnknownType, encode
from schemas.names import InvalidNameError
from schemas.node_events import FACTS as NODE_TYPES
from schemas.node_events import Fault, Registered, Telemetry, Verdict
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.pool_events import FACTS as POOL_TYPES
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import STATUSES, StepEntry
from schemas.saga_params import LaunchSpec, SagaParams, SetupSpec
from schemas.settings import PoolSpec
from schemas.step_data import ProvisionInputs, ProvisionOutputs
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.cli.commands import evidence_command
from services.cli.commands.ssh_command import checked_user, command_line, known_hosts
from services.operator_text.event_text import describe_stored
from services.primitives.errors import NavarchError
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import usable
from services.provisioner.provider_client.provider_errors import ProviderError
from tests.golden.examples import example
from tests.redteam.hostile import HOSTILE

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
BOUND = {
    **dict.fromkeys((*NODE_TYPES, Telemetry, NodeRecord, HeartbeatRecord), ("pool", "node")),
    **dict.fromkeys(POOL_TYPES, ("pool",)),
    **{each: ("saga", "step")[: 1 + issubclass(each, StepEntry)] for each in STATUSES},
    NodeView: ("id", "pool"),
    PoolView: ("name",),
    PoolRecord: ("name",),
    EvidenceBundle: ("pool", "node", "saga"),
    ProvisionInputs: ("pool", "node"),
    SagaParams: ("pool", "node", "new_node", "promotes"),
    SetupSpec: ("user",),
    PoolSpec: ("ssh_user",),
    ProvisionOutputs: ("provider_id", "region", "zone", "address", "host"),
    InstanceRecord: (
        *("pool", "instance", "provider_id", "region", "zone"),
        *("address", "host_key", "agent_key"),
    ),
}
"""Type -> the fields of it that reach more than a screen."""
IDENTIFIERS = {
    Fault: ("gpu_uuid", "gpu_serial", "pci"),
    Registered: ("instance", "boot_id", "address"),
    NodeRecord: ("address", "region", "zone"),
}
PLACES = frozenset({"provider_id", "region", "zone", "host"})
VISIBLE = frozenset(name for name, text in HOSTILE.items() if re.fullmatch("[!-~]+", text))
"""Visible ASCII alone: an ID of a provider may be such, and reaches no shell and no file."""


def fields() -> Iterator[Any]:
    """Yield every field whose names are bound."""
    for kind, names in (*BOUND.items(), *IDENTIFIERS.items()):
        yield from (pytest.param(kind, each, id=f"{kind.__name__}.{each}") for each in names)


@pytest.mark.parametrize(("kind", "field"), list(fields()))
def test_a_hostile_name_is_refused_when_it_is_decoded(kind: Any, field: str) -> None:
    """The error names the field as unusable; the same message with its own name is read."""
    plain = json.loads(example(kind))
    read = LimitedDecoder(kind)
    read.decode(json.dumps(plain).encode())
    free = VISIBLE if kind in IDENTIFIERS or field in PLACES else frozenset()
    names = [text for name, text in HOSTILE.items() if name not in free or field == "address"]
    for text in (*names, f"{plain.get(field) or 'training-3'}\n"):
        with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}`"):
            read.decode(json.dumps(plain | {field: text}).encode())


@pytest.mark.parametrize("kind", [*NODE_TYPES, *POOL_TYPES, *STATUSES])
def test_every_field_that_names_a_subject_is_bound(kind: Any) -> None:
    """A new message cannot leave its names free."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        if field.name in BOUND[kind]:
            assert isinstance(field.type, inspect.StrType)
            assert field.type.pattern


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("address", "10.0.0.7"),
        ("address", "10.0.0.7:2201"),
        ("address", "gpu-7.example.org:22"),
        ("address", "2001:db8::7"),
        ("address", "::1"),
        ("address", "[2001:db8::7]:22"),
        ("address", "fe80::1%eth0"),
        ("address", ""),
        ("host_key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMq"),
        ("host_key", "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY="),
        ("host_key", "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29t"),
        ("host_key", f"ssh-rsa {'A' * 3000}=="),
        ("provider_id", "i-0abc1234def567890"),
        ("provider_id", "us-central1-a/training-3-f00d"),
        ("provider_id", "https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/i"),
        ("provider_id", "/subscriptions/0-0/resourceGroups/rg/providers/x/virtualMachines/vm"),
        ("provider_id", "gpu_7.example:token"),
        ("provider_id", "0920582c7ff041399e34823a0be62549"),
        ("provider_id", "sha256:4f66ad9a"),
    ],
)
def test_what_providers_and_machines_report_is_read(field: str, value: str) -> None:
    """IDs of every provider that ships, host keys of every type, IPv6 addresses."""
    plain = json.loads(example(InstanceRecord)) | {field: value}
    found = LimitedDecoder(InstanceRecord).decode(json.dumps(plain).encode())
    assert value == getattr(found, field)


def record(**changes: Any) -> InstanceRecord:
    """An instance as a forged answer might name it, had nothing checked it."""
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t")
    made = InstanceRecord(
        pool="web",
        instance="web-1",
        provider="p",
        token="t",
        launch=launch,
        address="10.0.0.7",
        host_key="ssh-ed25519 AAAA",
        intended_at=NOW,
    )
    return replace(made, **changes)


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd", "a/b", "a\nb", "..", ""])
def test_no_answer_names_a_file_outside_the_data_directory(name: str, tmp_path: Path) -> None:
    """Even a record that was not decoded."""
    with pytest.raises(InvalidNameError):
        known_hosts(record(instance=name), tmp_path)
    bundle = msgspec.json.decode(example(EvidenceBundle), type=EvidenceBundle)
    with pytest.raises(InvalidNameError):
        evidence_command.write_files(tmp_path, replace(bundle, node=name))
    assert [] == list(tmp_path.iterdir())


def test_a_pinned_host_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    """The fleet's data directory holds the key; a link that waits in its place is replaced."""
    victim = tmp_path / "bashrc"
    victim.write_text("export A=1\n")
    folder = tmp_path / "known_hosts.d"
    folder.mkdir()
    (folder / "web-1").symlink_to(victim)
    file = known_hosts(record(), tmp_path)
    assert (folder / "web-1", "web-1 ssh-ed25519 AAAA\n") == (file, file.read_text())
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert not file.is_symlink()
    assert "export A=1\n" == victim.read_text()


@pytest.mark.parametrize("user", ["-oProxyCommand=touch x", "a b", "root;x", "a\nb", ""])
def test_no_user_is_an_option_of_ssh(user: str, tmp_path: Path) -> None:
    """Neither the pool's, nor that of `--user`; what follows `--` is a destination in any case."""
    plain = {"min_nodes": 0, "max_nodes": 1, "ssh_user": user}
    with pytest.raises(msgspec.ValidationError, match="ssh_user"):
        msgspec.convert(plain, PoolSpec, dec_hook=decode_hook)
    with pytest.raises(NavarchError, match="is not a login name"):
        checked_user(user)
    spec = PoolSpec(min_nodes=0, max_nodes=1, ssh_user=user)
    words = command_line(record(), spec, tmp_path / "known", ["nvidia-smi"])
    assert ["--", f"{user}@10.0.0.7", "nvidia-smi"] == words[-3:]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_provider_reports_is_recorded_only_if_it_can_be_read(name: str) -> None:
    """A hostile ID is an error of the provider; a hostile place or address counts as unknown."""
    text = HOSTILE[name] + " "
    made = Instance(name="n", provider_id="i-1", region=text, zone=text, address=text, host=text)
    found = usable(made, "aws")
    assert ("", "", "", "") == (found.region, found.zone, found.address, found.host)
    with pytest.raises(ProviderError, match="which is not one"):
        usable(replace(made, provider_id=text), "aws")
    assert made.name == usable(replace(made, region="r"), "aws").name


FORGED = [
    (Fault(id="1", time=NOW, pool="web", node="web-2", kind="xid"), "node.web.web-1.event.fault"),
    (Fault(id="1", time=NOW, pool="db", node="web-1", kind="xid"), "node.web.web-1.event.fault"),
    (
        Verdict(id="1", time=NOW, pool="web", node="web-1", status="unhealthy", action="replace"),
        "node.web.web-1.event.fault",
    ),
    (Telemetry(id="1", time=NOW, pool="web", node="web-2"), "node.web.web-1.telemetry"),
    (Fault(id="1", time=NOW, pool="web", node="web-1", kind="xid"), "pool.web.event.scaled"),
]


@pytest.mark.parametrize(("message", "subject"), FORGED)
def test_a_message_that_disagrees_with_its_subject_is_refused(message: Any, subject: str) -> None:
    """The server checks subjects, not contents.

    So no agent speaks for another node or as a service, and `navarch events` says what is wrong.
    """
    stored = Stored(f"navarch.v1.{subject}", encode(message), 1, NOW)
    assert isinstance(decode_stored(stored), Invalid | UnknownType)
    text = describe_stored(stored)
    assert text.subject == ("web" if subject.startswith("pool") else "web/web-1")
    assert "web-2" not in text.subject
    assert text.title in ("invalid", "unknown")
    if text.title == "invalid":
        assert f"it came on navarch.v1.{subject}" in text.detail


def test_a_message_that_agrees_with_its_subject_is_used() -> None:
    """The table above is not refused for another reason."""
    for kind in (*NODE_TYPES, Telemetry, *POOL_TYPES, *STATUSES):
        message = msgspec.json.decode(example(kind), type=kind)
        from schemas.stored_messages import message_subject  # noqa: PLC0415

        assert message == decode_stored(Stored(message_subject(message), encode(message), 1, NOW))
