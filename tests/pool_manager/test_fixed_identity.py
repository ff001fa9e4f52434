"""An agent's reports after admission change nothing of its node's identity."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.enums import HardwareKind
from schemas.node_events import GpuIdentity, Registered
from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.saga_params import LaunchSpec
from services.pool_manager.gpu_owners import GpuOwners
from services.pool_manager.planner import fixed_identity
from services.pool_manager.planner.fixed_identity import NotAcceptedError, no_owner
from services.pool_manager.planner.node_identity import identity_facts
from services.pool_manager.planner.node_projection import apply_event

START = datetime(2026, 11, 28, 4, 30, tzinfo=UTC)
LATER = START + timedelta(hours=2)


def gpus(letters: str, indexes: Iterable[int] | None = None) -> tuple[GpuIdentity, ...]:
    """Return one GPU for each letter."""
    return tuple(
        GpuIdentity(index=index, uuid=f"GPU-{letter}", serial=f"s-{letter}")
        for index, letter in zip(indexes or range(99), letters, strict=False)
    )


def registered(at: datetime = LATER, **said: Any) -> Registered:
    """Return a registration of the admitted machine, but for what is said."""
    known = {
        "gpus": gpus("ab"),
        "rack": "r1",
        "nvlink_domain": "d1",
        "machine_id": "m1",
        "provider_id": "i-1",
        "boot_id": "boot-1",
    }
    return Registered(
        id=f"r-{at:%H%M%S}", time=at, pool="p", node="n", instance="n", **(known | said)
    )


NEW = NodeRecord(
    pool="p",
    node="n",
    state="registered",
    launch=LaunchSpec(fleet="f", provider="aws", instance_type="t"),
)


def admitted(provider_id: str = "", said_id: str = "i-1", **said: Any) -> NodeRecord:
    """Return a node that was admitted after this registration."""
    said = {"provider_id": said_id, **said}
    record = apply_event(NEW, registered(START, **said), START)
    assert record is not None
    identity = fixed_identity.at_admission(record, provider_id, START)
    return replace(record, identity=identity, state="active", admitted_at=START)


def after(
    node: NodeRecord, event: Registered, owners: fixed_identity.Owners = no_owner
) -> NodeRecord:
    """Return the node's record after a registration."""
    found = apply_event(node, event, event.time, owners)
    assert found is not None
    return found


def hardware(node: NodeRecord) -> tuple[Any, ...]:
    """Return what others are acted on by."""
    return node.gpus, node.rack, node.nvlink_domain


@pytest.mark.parametrize(
    ("said", "difference"),
    [
        ({"gpus": gpus("xy")}, "GPUs GPU-x, GPU-y instead of GPU-a, GPU-b"),
        ({"gpus": gpus("abc")}, "3 GPUs instead of 2"),
        ({"gpus": gpus("ab", [0, 0])}, "several GPUs of the same index"),
        ({"gpus": gpus("aa")}, "several GPUs of the same uuid"),
        ({"gpus": gpus("abcdefgh", [0] * 8)}, "GPUs GPU-c, GPU-d, GPU-e, GPU-f and 2 more"),
        ({"gpus": (replace(gpus("a")[0], serial="s-z"),)}, "GPU serials s-z"),
        ({"gpus": (GpuIdentity(index=0, uuid="", serial="s-z"),)}, "GPU serials s-z"),
        ({"rack": "r2"}, "rack r2 instead of r1"),
        ({"nvlink_domain": "d2"}, "NVLink domain d2 instead of d1"),
        ({"machine_id": "m2"}, "machine m2 instead of m1"),
        ({"provider_id": "i-2"}, "instance i-2 instead of i-1"),
    ],
)
def test_another_identity_changes_nothing_and_is_a_condition(
    said: dict[str, Any], difference: str
) -> None:
    """The event names the difference and how to accept it, once an hour for each claim."""
    node, event = admitted(), registered(boot_id="boot-2", **said)
    changed = after(node, event)
    [fact] = identity_facts(changed, event, LATER)

    assert hardware(changed) == hardware(node)
    assert changed.boot_id == "boot-2"
    assert changed.identity is not None
    assert difference in fixed_identity.difference(changed)
    assert difference in fact.reason  # type: ignore[attr-defined]
    assert "navarch identity accept n" in fact.remedy  # type: ignore[attr-defined]
    again = after(changed, registered(LATER + timedelta(minutes=1), boot_id="boot-2", **said))
    [repeated] = identity_facts(again, event, LATER + timedelta(minutes=1))
    assert repeated.id == fact.id


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"gpus": gpus("ba"), "boot_id": "boot-2", "hostname": "other"},  # other indexes
        {"gpus": gpus("a")},  # one has fallen off the bus
        {"gpus": ()},  # the driver does not answer
        {"gpus": (GpuIdentity(index=0), GpuIdentity(index=1))},  # it answers nothing
        {"rack": "", "nvlink_domain": ""},
        {"rack": "of-the-cloud", "nvlink_domain": ""},  # before the GPUs joined their domain
        {"machine_id": "", "provider_id": ""},
        {"machine_id": "M1", "provider_id": "I-1"},  # another spelling
    ],
)
def test_what_is_not_read_or_moves_within_the_set_is_no_change(said: dict[str, Any]) -> None:
    """Index, PCI address and host name may change; the rack stays what it was."""
    node, event = admitted(), registered(**said)
    changed = after(node, event)
    assert identity_facts(changed, event, LATER) == []
    assert changed.identity is not None
    assert changed.identity.claimed is None
    assert changed.gpus == event.gpus
    assert (changed.rack, changed.nvlink_domain) == ("r1", "d1")


def test_the_fixed_identity_reported_again_ends_the_condition() -> None:
    """The event is published once."""
    changed = after(admitted(), registered(rack="r2"))
    back = registered(LATER + timedelta(minutes=1))
    restored = after(changed, back)
    [fact] = identity_facts(restored, back, back.time)
    assert fact.status == "restored"  # type: ignore[attr-defined]
    later = registered(LATER + timedelta(minutes=2))
    assert identity_facts(after(restored, later), later, later.time) == []


def test_what_the_provider_says_beats_the_agent() -> None:
    """An agent that names another instance than was launched has a condition from the beginning."""
    own, other = "i-0123456789abcdef0", "i-0fedcba9876543210"
    gcp = "us-central1-a/training-1"
    node = admitted(provider_id=other, said_id=own)
    assert fixed_identity.difference(node) == f"instance {own} instead of {other}"
    assert fixed_identity.changed_event(node, "cause", LATER) is not None
    for provider, agent in ((own, own), (gcp, gcp), ("", own), (own, "")):
        assert fixed_identity.difference(admitted(provider_id=provider, said_id=agent)) == ""


@pytest.mark.parametrize("provider", ["gpu-01", "10.0.0.7", "us-central1-a/training-1", "4711"])
def test_a_provider_that_names_hosts_is_not_compared_with_a_cloud(provider: str) -> None:
    """A machine of SSH or one that joined may be of AWS, whose metadata its agent reads."""
    node = admitted(provider_id=provider, said_id="i-0123456789abcdef0")
    assert fixed_identity.difference(node) == ""
    again = registered(provider_id="i-0123456789abcdef0")
    assert identity_facts(after(node, again), again, LATER) == []


def test_a_node_of_an_earlier_release_is_fixed_at_its_next_registration() -> None:
    """The first that names its GPUs; the second is compared with it."""
    old = replace(admitted(), identity=None)
    silent = after(old, registered(gpus=()))
    assert silent.identity is not None
    assert silent.identity.fixed is None
    fixed = after(silent, registered(LATER + timedelta(minutes=1)))
    forged = after(fixed, registered(LATER + timedelta(minutes=2), rack="r2"))
    assert hardware(forged) == hardware(fixed) == (gpus("ab"), "r1", "d1")


def owners_of(*nodes: NodeRecord) -> fixed_identity.Owners:
    """Return the index over these records."""
    found = GpuOwners()
    found.records = {f"{each.pool}.{each.node}": each for each in nodes}
    for key in found.records:
        found.note(key)
    return found.of


OTHER = replace(admitted(gpus=gpus("xy")), node="other")


@pytest.mark.parametrize("old", [NEW, admitted(), replace(admitted(), identity=None)])
@pytest.mark.parametrize(
    "said", [gpus("xy"), gpus("ax"), (GpuIdentity(index=0, uuid="GPU-n", serial="s-x"),)]
)
def test_a_live_nodes_gpus_are_refused(old: NodeRecord, said: tuple[GpuIdentity, ...]) -> None:
    """UUIDs and serials are compared before admission, after it, and of an earlier release."""
    event = registered(gpus=said, boot_id="boot-2")
    changed = after(old, event, owners_of(OTHER, old))
    [fact] = identity_facts(changed, event, LATER)

    assert changed.gpus == old.gpus
    assert "p.other" in fixed_identity.duplicates(changed)
    assert "p.other" in fact.reason  # type: ignore[attr-defined]
    if old.identity is not None:
        with pytest.raises(NotAcceptedError, match=r"p\.other"):
            fixed_identity.accepted(
                changed, fixed_identity.claim_of(changed), "ann", owners_of(OTHER), LATER
            )


@pytest.mark.parametrize("gone", [{"state": "terminated"}, {"lost": True}])
def test_gpus_of_a_node_that_is_gone_may_come_again(gone: dict[str, Any]) -> None:
    """A cloud sells the same machine again, and one that fell silent may have another name."""
    event = registered(gpus=gpus("xy"))
    assert after(NEW, event, owners_of(replace(OTHER, **gone))).gpus == gpus("xy")


def test_the_index_follows_the_records() -> None:
    """A GPU that a node has no more is another's; of two the first has it."""
    index = GpuOwners()
    records = {"p.other": OTHER}
    index.records = records
    index.note("p.other")
    records["p.third"] = replace(OTHER, node="third")
    index.note("p.third")
    kind: HardwareKind = "gpu"
    assert index.of(kind, "GPU-x") == "p.other"
    records["p.other"] = replace(OTHER, state="terminated")
    index.note("p.other")
    index.note("p.third")
    assert index.of(kind, "GPU-x") in ("p.third", "")
    del records["p.third"]
    assert index.of(kind, "GPU-x") == ""


def test_an_operator_accepts_what_was_shown() -> None:
    """Nothing is accepted after a new claim; fields that the report lacks stay known."""
    said = {"gpus": gpus("cd"), "rack": "", "nvlink_domain": ""}
    changed = after(admitted(), registered(**said))
    claim = fixed_identity.claim_of(changed)
    other = after(changed, registered(LATER + timedelta(minutes=1), gpus=gpus("ef")))
    with pytest.raises(NotAcceptedError, match="another identity since"):
        fixed_identity.accepted(other, claim, "ann", no_owner, LATER)
    accepted = fixed_identity.accepted(changed, claim, "ann", no_owner, LATER)
    assert hardware(accepted) == (gpus("cd"), "r1", "d1")
    assert identity_facts(after(accepted, registered(**said)), registered(**said), LATER) == []
    with pytest.raises(NotAcceptedError, match="admitted with"):
        fixed_identity.accepted(accepted, claim, "ann", no_owner, LATER)


REBOOT = RemediationAttempt(saga="reboot-n-1", kind="reboot", at=START, outcome="open")


@pytest.mark.parametrize(
    ("record", "said", "accepts"),
    [
        ({"attempts": (REBOOT,), "restarts_cold": True}, {"gpus": gpus("cd")}, True),
        ({"attempts": (REBOOT,)}, {"gpus": gpus("cd")}, False),  # its machine stays the same
        ({"restarts_cold": True}, {"gpus": gpus("cd")}, False),  # Navarch has not ordered it
        (
            {"attempts": (replace(REBOOT, outcome="recovered"),), "restarts_cold": True},
            {"gpus": gpus("cd")},
            False,
        ),
        (
            {"attempts": (REBOOT,), "restarts_cold": True},
            {"gpus": gpus("cd"), "boot_id": "boot-1"},
            False,
        ),
        ({"attempts": (REBOOT,), "restarts_cold": True}, {"gpus": gpus("cde")}, False),
        ({"attempts": (REBOOT,), "restarts_cold": True}, {"gpus": gpus("ac")}, False),
        ({"attempts": (REBOOT,), "restarts_cold": True}, {"rack": "r2"}, False),
        (
            {"attempts": (REBOOT,), "restarts_cold": True},
            {"gpus": gpus("cd"), "rack": "r2"},
            False,
        ),
    ],
)
def test_a_repair_that_navarch_ordered_accepts_what_it_ordered(
    record: dict[str, Any], said: dict[str, Any], accepts: bool
) -> None:
    """A machine that is switched off and on may come up on another host, and in no other rack."""
    node = replace(admitted(), **record)
    changed = after(node, registered(**({"boot_id": "boot-2"} | said)))
    assert changed.identity is not None
    assert (changed.identity.claimed is None) is accepts
    assert changed.gpus == (said["gpus"] if accepts else gpus("ab"))
    assert changed.rack == "r1"
