"""Steps that only a share of the campaigns have, each drawn apart from all others. Pure.

So a seed keeps its other steps when a kind is added here.
"""

from random import Random
from typing import Final

from schemas.topology import BUCKETS, DURABLES, HEARTBEATS, STREAMS
from services.simulator.engine.fault_kinds import (
    ANNOUNCED,
    BROKER,
    CLOUD,
    HALF,
    SERVICES,
    STORE_LOSSES,
    WHOLE_STORE,
    WORKLOAD,
)
from services.simulator.inputs.fuzz.campaign_steps import (
    CampaignStep,
    FleetShape,
    OperatorAction,
    OperatorVerb,
    made_fault,
)

OUTAGE_SHARE: Final = 0.25
FATAL_MESSAGE_SHARE: Final = 0.1
REFUSING: Final = tuple(
    each
    for each in (*(s.name for s in STREAMS), *(f"KV_{b.name}" for b in BUCKETS))
    if each != f"KV_{HEARTBEATS.name}"
)
"""Streams that may refuse writes. Not heartbeats: nodes without them are silent."""

LOST: Final = (*REFUSING, f"KV_{HEARTBEATS.name}")
"""Streams that may be destroyed."""

SLOW_REMOVAL_SHARE: Final = 0.15
FIXED_CAPACITY_SHARE: Final = 0.1
LOST_SHARE: Final = 0.1
RESTORED_SHARE: Final = 0.05
STOPPED_SHARE: Final = 0.15
OLD_HARDWARE_SHARE: Final = 0.1
FLAPPING_SHARE: Final = 0.05
EXPIRED_SHARE: Final = 0.05
ANNOUNCED_SHARE: Final = 0.15
SCHEDULER_SHARE: Final = 0.25
SCHEDULER_FAULTS: Final = ("slow_orders", "refused_orders", "late_work", "returning_work")
OPERATOR_STOP_SHARE: Final = 0.1
FATAL_XID: Final = 79
SECOND_SHARE: Final = 0.05
FIRST_SECONDS: Final = 20.0
"""What lasts begins in them."""
FREEZE_SHARE: Final = 0.25
LAUNCH_FREEZE_SHARE: Final = 0.8
"""Of the campaigns in which launches have leases."""
LAUNCH_LEASE: Final = "provisioner.launch-"
LAUNCH_CALLS_MAX: Final = 6
"""Calls of a launch from its lease to its request."""
CALLS_MAX: Final = 30
TAKEN_OVER_SECONDS: Final = (4.0, 15.0)
"""Long enough for another replica to get the lease, and to launch."""
LAST_ANSWERS: Final = (3, 5)
"""Of the answers from the lease of a launch on, those after one of which the cloud is asked: the
fourth, where no other task of the process is answered meanwhile."""
LEASE_SECONDS: Final = (3.0, 6.0)
"""About as long as another replica takes to get the lease, and to use it."""


def draw_rare(seed: str, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Draw all of them, in no order."""

    def chance(what: str) -> Random:
        return Random(f"{seed}/{what}")  # noqa: S311 - repeatable is the point

    return [
        *_outages(chance("refused-writes"), seconds),
        *_fatal_messages(chance("fatal-messages"), seconds),
        *_losses(chance("lost-stores"), seconds),
        *_restores(chance("restored-store"), seconds),
        *_removals(chance("removals"), shape, seconds),
        *_old_hardware(chance("old-hardware"), seconds),
        *_stopped(chance("stopped"), seconds),
        *_flapping(chance("flapping"), seconds),
        *_expired(chance("credentials"), seconds),
        *_announced(chance("announced"), seconds),
        *_schedulers(chance("scheduler"), seconds),
        *_second_machines(chance("second-machine"), seconds),
        *_freezes(chance("freezes"), shape, seconds),
        *_stops(chance("stops"), seconds),
        *_late_requests(chance("late-requests"), shape, seconds),
        *_queues(chance("queues"), shape, seconds),
        *_silences(chance("silences"), shape),
    ]


def _outages(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, a stream that refuses writes for a while; drawn apart from the others."""
    if chance.random() >= OUTAGE_SHARE:
        return []
    fault = made_fault(
        "refused_writes", BROKER, stream=chance.choice(REFUSING), seconds=chance.uniform(60, 900)
    )
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _fatal_messages(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, a message that ends its service's processes; drawn apart from others."""
    if chance.random() >= FATAL_MESSAGE_SHARE:
        return []
    fault = made_fault("fatal_message", chance.choice(SERVICES))
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _losses(chance: Random, seconds: float) -> list[CampaignStep]:
    """In a few campaigns, a stream or durable that is destroyed; drawn apart from the others."""
    if chance.random() >= LOST_SHARE:
        return []
    kind = chance.choice(sorted(STORE_LOSSES))
    durables = [each for each in DURABLES if not each.name.startswith("metrics")]
    durable = chance.choice(durables) if kind.startswith("durable") else None
    fault = made_fault(
        kind,
        BROKER,
        stream=durable.stream if durable else chance.choice(LOST),
        durable=durable.name if durable else "",
        seconds=chance.uniform(1, 90),
    )
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _restores(chance: Random, seconds: float) -> list[CampaignStep]:
    """In a few campaigns, a backup of everything that is restored; drawn apart from the others."""
    if chance.random() >= RESTORED_SHARE:
        return []
    kind = chance.choice(sorted(WHOLE_STORE))
    fault = made_fault(kind, BROKER, seconds=chance.uniform(1, 120))
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _removals(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """In some campaigns, machines that are slow to go or refuse to, or of which there are few."""
    steps: list[CampaignStep] = []
    if chance.random() < SLOW_REMOVAL_SHARE:
        kind = chance.choice(("slow_removal", "terminate_error"))
        fault = made_fault(kind, CLOUD, seconds=chance.uniform(30, 1_200))
        steps.append(CampaignStep(chance.uniform(0, seconds), fault))
    if chance.random() < FIXED_CAPACITY_SHARE:
        count = shape.nodes + shape.spares
        fault = made_fault("fixed_capacity", CLOUD, count=count, seconds=chance.uniform(30, 1_200))
        steps.append(CampaignStep(chance.uniform(0, seconds), fault))
    return steps


def _old_hardware(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, a cloud that hands out the host first that was freed last."""
    if chance.random() >= OLD_HARDWARE_SHARE:
        return []
    fault = made_fault("old_hardware", CLOUD, count=chance.randint(1, 8))
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _stopped(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, machines that do not run, of one node or of half of the fleet."""
    if chance.random() >= STOPPED_SHARE:
        return []
    target = chance.choice(("", "", HALF))
    return [CampaignStep(chance.uniform(0, seconds), made_fault("stopped", target))]


def _flapping(chance: Random, seconds: float) -> list[CampaignStep]:
    """In a few campaigns, half of the fleet is silent again and again; drawn apart from others."""
    if chance.random() >= FLAPPING_SHARE:
        return []
    # Longer than alerts about silence are held, shorter than a silent node is kept.
    fault = made_fault(
        "flapping", HALF, seconds=chance.uniform(24, 28), count=chance.randint(3, 12)
    )
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _expired(chance: Random, seconds: float) -> list[CampaignStep]:
    """In a few campaigns, credentials that are renewed too late; drawn apart from the others."""
    if chance.random() >= EXPIRED_SHARE:
        return []
    # Longer than a silent node is kept, shorter than one with expired credentials is.
    late = chance.uniform(60, 150)
    target = chance.choice(("", "", HALF))
    fault = made_fault("credentials_expired", target, seconds=late)
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _announced(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, restarts and pauses that the cloud announces; drawn apart from others."""
    if chance.random() >= ANNOUNCED_SHARE:
        return []
    return [
        CampaignStep(
            chance.uniform(0, seconds),
            made_fault(chance.choice(sorted(ANNOUNCED)), seconds=chance.uniform(5, 240)),
            chance.choice(("", "", "", "withdrawn")),
        )
        for _ in range(chance.randint(1, 3))
    ]


def _schedulers(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, a workload system that is slow, or refuses, and work that stays."""
    if chance.random() >= SCHEDULER_SHARE:
        return []
    return [
        CampaignStep(
            chance.uniform(0, seconds),
            made_fault(chance.choice(SCHEDULER_FAULTS), WORKLOAD, seconds=chance.uniform(5, 300)),
        )
        for _ in range(chance.randint(1, 3))
    ]


def _second_machines(chance: Random, seconds: float) -> list[CampaignStep]:
    """In a few campaigns, two machines that use one node ID."""
    if chance.random() >= SECOND_SHARE:
        return []
    fault = made_fault("second_machine", count=chance.randint(1, 6))
    return [CampaignStep(chance.uniform(0, seconds), fault)]


def _freezes(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """In some campaigns, holders of leases that are stopped between any two awaits.

    A launch has a lease where the cloud knows no tokens; a node that is gone begins one.
    """
    launches = not shape.idempotent and shape.replicas > 1
    if chance.random() >= (LAUNCH_FREEZE_SHARE if launches else FREEZE_SHARE):
        return []
    steps: list[CampaignStep] = []
    for number in range(chance.randint(2, 6)):
        at, of_launch = chance.uniform(0, seconds), launches and number > 0
        fault = made_fault(
            "freeze",
            "provisioner" if of_launch else chance.choice(SERVICES),
            lease=LAUNCH_LEASE if of_launch else "",
            after_effects=chance.randint(1, LAUNCH_CALLS_MAX if of_launch else CALLS_MAX),
            seconds=chance.uniform(*(LEASE_SECONDS if of_launch else (4, 30))),
        )
        steps.append(CampaignStep(at, fault))
        if of_launch:
            steps.append(CampaignStep(at, made_fault("deleted")))
    return steps


def _stops(chance: Random, seconds: float) -> list[CampaignStep]:
    """In some campaigns, an operator who stops what is automatic, with a fault, and resumes."""
    steps: list[CampaignStep] = []
    for _ in range(chance.randint(1, 2) if chance.random() < OPERATOR_STOP_SHARE else 0):
        at, lasts = chance.uniform(0, seconds), chance.uniform(20, 90)
        verb: OperatorVerb = chance.choice(("stop", "stop-running"))
        steps.append(CampaignStep(at, OperatorAction(verb=verb, seconds=lasts)))
        fault = made_fault("xid_error", xid_code=FATAL_XID, fixed_by="replace")
        steps.append(CampaignStep(min(at + chance.uniform(0, lasts), seconds), fault))
    return steps


def _late_requests(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Launches under leases that expire unseen, immediately before the cloud is asked."""
    has_leases = not shape.idempotent and not shape.adopted
    if not has_leases or shape.replicas == 1:
        return []
    steps: list[CampaignStep] = []
    for _ in range(chance.randint(4, 9)):
        at = chance.uniform(0, seconds)
        fault = made_fault(
            *("freeze", "provisioner"),
            lease=LAUNCH_LEASE,
            after_effects=chance.randint(*LAST_ANSWERS),
            seconds=chance.uniform(*TAKEN_OVER_SECONDS),
            effect="after",
        )
        steps += [CampaignStep(at, fault), CampaignStep(at, made_fault("deleted"))]
    return steps


def _queues(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Jobs that wait from the beginning on, and sometimes more or fewer of them later."""
    if not shape.queue:
        return []
    first, later = chance.randint(1, 2), chance.uniform(FIRST_SECONDS, seconds)
    steps = [(chance.uniform(0, FIRST_SECONDS), first)]
    if chance.random() < 1 / 2:
        steps.append((later, chance.choice((0, first, first + 1))))
    return [CampaignStep(at, OperatorAction(verb="queue", nodes=jobs)) for at, jobs in steps]


def _silences(chance: Random, shape: FleetShape) -> list[CampaignStep]:
    """Half of a fleet without power from the beginning on: its cloud says that it runs."""
    if not shape.silence:
        return []
    fault = made_fault("power_off", HALF, fixed_by=chance.choice(("reboot", "replace")))
    return [CampaignStep(chance.uniform(0, FIRST_SECONDS), fault)]
