"""A machine that has the name of another one is not judged by what that one had."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas.health_records import HealthRecord
from schemas.machine_identity import MachineIdentity
from schemas.node_events import Fault, GpuIdentity, MachineRefused, Registered
from services.health_monitor.rules import node_health
from services.health_monitor.rules.fault_history import of_machine
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.node_health import PublishVerdict, Trigger

NOW = datetime(2026, 11, 28, 4, 30, tzinfo=UTC)
UNHEALTHY = Judgement(result="unhealthy", action="replace", rule="r", policy="p", fatal=True)


def seen(number: int) -> Trigger:
    """Return the trigger for the message of this number."""
    return Trigger(f"m{number}", number, NOW + timedelta(seconds=number))


def registered(boot: str, *gpus: str) -> Registered:
    """Return an agent's first registration of a boot, with the UUIDs of its GPUs."""
    found = tuple(GpuIdentity(index=number, uuid=each) for number, each in enumerate(gpus))
    return Registered(
        id=f"{boot}.registered",
        time=NOW,
        pool="p",
        node="n",
        instance="n",
        boot_id=boot,
        gpus=found,
    )


def after_registration(
    record: HealthRecord, event: Registered, number: int
) -> tuple[HealthRecord, list[str]]:
    """The record, and the verdicts that are published."""
    known = of_machine(record, event, number)
    record, effects = node_health.decide_registered(known, event, seen(number))
    found = [each.verdict.status for each in effects if isinstance(each, PublishVerdict)]
    return record, found


def after_fault(record: HealthRecord, number: int, boot: str) -> HealthRecord:
    """The record of a node on which a GPU fell off the bus."""
    fault = Fault(
        id=f"f{number}",
        time=NOW,
        pool="p",
        node="n",
        kind="xid",
        code=79,
        gpu_index=0,
        boot_id=boot,
    )
    return node_health.decide_fault(record, fault, UNHEALTHY, seen(number))[0]


@pytest.mark.parametrize(
    ("gpus", "boot", "status"),
    [
        (("c", "d"), "b2", "healthy"),
        (("a", "b"), "b2", "unhealthy"),  # it has rebooted
        (("b",), "b2", "unhealthy"),  # without the GPU that fell off the bus
        (("b", "c"), "b2", "unhealthy"),  # a GPU was exchanged
        ((), "b2", "unhealthy"),
    ],
)
def test_another_machine_begins_healthy(gpus: tuple[str, ...], boot: str, status: str) -> None:
    """The end of the earlier one is not known yet, or never published."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a", "b"), 1)
    record = after_fault(record, 2, "b1")
    record, verdicts = after_registration(record, registered(boot, *gpus), 3)
    assert record.status == status
    assert verdicts == (["healthy"] if status == "healthy" else [])
    again, verdicts = after_registration(record, registered(boot, *gpus), 3)
    assert (again, verdicts) == (record, [])


def test_what_another_machine_reported_before_it_registered_counts() -> None:
    """The new machine's kernel log may be read before it registers."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a"), 1)
    record = after_fault(record, 2, "b2")
    assert after_registration(record, registered("b2", "c"), 3)[0].status == "unhealthy"


def test_a_registration_that_comes_late_says_nothing_of_the_machine() -> None:
    """A replica stalled on it, or was killed before it was acknowledged."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a"), 1)
    record, _ = after_registration(record, registered("b2", "c"), 2)
    record = after_fault(record, 4, "b2")
    for number in (1, 3):
        again, verdicts = after_registration(record, registered("b1", "a"), number)
        assert (again.status, verdicts) == ("unhealthy", [])
        assert after_registration(again, registered("b2", "c"), 5)[0].status == "unhealthy"


def test_gpus_that_a_list_lacks_are_remembered() -> None:
    """One that fell off the bus is missing in one registration, and another in the next."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a", "b"), 1)
    record, _ = after_registration(record, registered("b2", "a"), 2)
    record = after_fault(record, 3, "b2")
    assert after_registration(record, registered("b3", "b"), 4)[0].status == "unhealthy"


def test_a_cordon_of_another_machines_gpu_is_not_inherited() -> None:
    """The GPU of that index in the new machine is healthy."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a"), 1)
    fault = Fault(
        id="f2", time=NOW, pool="p", node="n", kind="xid", code=48, gpu_index=0, boot_id="b1"
    )
    judged = Judgement(
        result="unhealthy", action="reset_gpu", rule="r", policy="p", fatal=True, cordon="gpu"
    )
    record, _ = node_health.decide_fault(record, fault, judged, seen(2), cordons_gpus=True)
    assert record.cordon_gpus == (0,)
    record, _ = after_registration(record, registered("b2", "c"), 3)
    assert (record.status, record.cordon_gpus) == ("healthy", ())


def test_a_machine_without_gpus_is_no_other_one() -> None:
    """The known GPUs are kept, so that the next registration is compared with them."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a"), 1)
    record, _ = after_registration(record, registered("b2"), 2)
    record = after_fault(record, 3, "b2")
    assert after_registration(record, registered("b3", "c"), 4)[0].status == "healthy"


def test_the_own_machine_is_judged_again_once_a_second_one_is_refused() -> None:
    """The second machine's conditions end, and the own machine's boot is the node's again."""
    record, _ = after_registration(HealthRecord(pool="p", node="n"), registered("b1", "a"), 1)
    record, _ = after_registration(record, registered("b2", "c"), 2)
    own, other = (
        MachineIdentity(boot_id=boot, gpus=(gpu,), since=NOW, heard_at=NOW, registered_at=NOW)
        for boot, gpu in (("b1", "a"), ("b2", "c"))
    )
    event = MachineRefused(id="m", time=NOW, pool="p", node="n", machine=own, refused=other)
    record, _ = node_health.decide_machine_refused(record, event, seen(3))
    work = working_of(record)
    assert (work.refused, work.boot, work.gpus) == (("b2",), "b1", ("a",))
    assert node_health.decide_machine_refused(record, event, seen(3)) == (record, ())
    record = after_fault(record, 4, "b1")
    assert after_registration(record, registered("b1", "a"), 5)[0].status == "unhealthy"
