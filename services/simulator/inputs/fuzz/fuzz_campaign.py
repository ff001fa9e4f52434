"""A fuzz campaign, drawn from a seed: a fleet, faults and operators' requests. Pure.

A campaign is a list of values, so that the shrinker can leave steps out and see whether the
violation remains.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from services.simulator.engine.fault_kinds import (
    ALL,
    BROKER,
    CLOUD,
    JOB,
    RACK,
    SERVICES,
    WORKLOAD,
    FaultKind,
    InjectedFault,
)
from services.simulator.engine.hardware_failures import REMEDIES
from services.simulator.engine.offering_selector import OfferingSelector
from services.simulator.inputs.fuzz.campaign_steps import (
    ZONES,
    Campaign,
    CampaignStep,
    FleetShape,
    OperatorAction,
    OperatorVerb,
    Withdrawal,
    draw_shape,
    made_fault,
    wrong_ids,
)
from services.simulator.inputs.fuzz.rare_steps import draw_rare

FATAL: Final = (79, 79, 79, 48, 95)
FABRIC_XID: Final = 145
MILD: Final = (13, 43, 63, 94)
REPEATS_MAX: Final = 16
NEAR_SHARE: Final = 0.5
NEAR_SECONDS: Final = 30.0
SILENT_SECONDS: Final = 420.0
"""After the last step: silence lasts for several holds before a person ends the incident."""


def draw(seed: str, minutes: float) -> Campaign:
    """Draw a fleet, and steps over so many minutes."""
    chance = Random(f"{seed}/campaign")  # noqa: S311 - repeatable is the point
    shape = draw_shape(seed, chance)
    seconds = minutes * 60
    # Each run leaves some kinds out: other combinations show other defects.
    draws = chance.sample(_DRAWS, k=chance.randint(3, len(_DRAWS)))
    draws += _ALWAYS
    steps: list[CampaignStep] = []
    for _ in range(chance.randint(3, 4 + int(minutes * 5))):
        at = chance.uniform(0, seconds)
        if steps and chance.random() < NEAR_SHARE:
            # A fault is most likely to show a defect while something else is half done.
            at = min(chance.choice(steps).at + chance.uniform(0, NEAR_SECONDS), seconds)
        made = chance.choice(draws)(chance)
        action, withdrawal = made if isinstance(made, tuple) else (made, "")
        steps.append(CampaignStep(at, action, withdrawal))
    steps += draw_rare(seed, shape, seconds)
    steps += _full_zones(Random(f"{seed}/full-zones"), shape, seconds)  # noqa: S311
    steps += _full_markets(Random(f"{seed}/full-markets"), shape, seconds)  # noqa: S311
    steps += _reclaims(Random(f"{seed}/reclaims"), shape, seconds)  # noqa: S311
    steps += _job_faults(Random(f"{seed}/jobs"), shape, seconds)  # noqa: S311
    steps += _rack_faults(Random(f"{seed}/rack-faults"), shape, seconds)  # noqa: S311
    steps += _relabels(Random(f"{seed}/labels"), shape, seconds)  # noqa: S311
    steps += _resizes(Random(f"{seed}/group"), shape, seconds)  # noqa: S311
    steps = [_renewable(each, shape) for each in steps]
    lasts = seconds + SILENT_SECONDS if shape.silence else seconds
    return Campaign(shape, tuple(sorted(steps, key=lambda each: each.at)), lasts)


def _renewable(step: CampaignStep, shape: FleetShape) -> CampaignStep:
    """No more nodes than can be renewed one by one as they expire: else none is ever at rest."""
    action = step.action
    if not shape.expire_after_seconds or not isinstance(action, OperatorAction):
        return step
    if action.verb != "scale" or action.nodes <= shape.nodes:
        return step
    return replace(step, action=replace(action, nodes=shape.nodes))


def _full_zones(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Zones with room for a part of the nodes, and a pool that is emptied and grows again."""
    steps: list[CampaignStep] = []
    for _ in range(chance.randint(1, 4) if shape.together else 0):
        at, lasts = chance.uniform(0, seconds), chance.uniform(30, 400)
        zone = OfferingSelector(zone=chance.choice(("", *ZONES)))
        room = chance.randint(0, shape.nodes)
        full = made_fault("fixed_capacity", CLOUD, count=room, seconds=lasts, selector=zone)
        steps.append(CampaignStep(at, full))
        for nodes in (0, chance.randint(2, shape.nodes + 3)):
            steps.append(CampaignStep(at, OperatorAction(verb="scale", nodes=nodes)))
            at = min(at + chance.uniform(10, 120), seconds)
    return steps


def _full_markets(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Markets without capacity, and a pool that changes its size."""
    steps: list[CampaignStep] = []
    markets = ("on-demand", "spot") if shape.on_demand_min else ("spot",)
    full = shape.on_demand_min or shape.consolidates
    for _ in range(chance.randint(1, 3) if full else 0):
        at, market = chance.uniform(0, seconds), chance.choice(markets)
        selector, lasts = OfferingSelector(market=market), chance.uniform(30, 300)
        fault = made_fault("no_capacity", CLOUD, seconds=lasts, selector=selector)
        steps.append(CampaignStep(at, fault))
        scale = OperatorAction(verb="scale", nodes=chance.randint(1, shape.nodes + 3))
        steps.append(CampaignStep(min(at + chance.uniform(0, 60), seconds), scale))
    return steps


def _reclaims(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Spot instances of one zone that the cloud takes back."""
    steps: list[CampaignStep] = []
    for _ in range(chance.randint(2, 5) if shape.interruption_seconds else 0):
        zone, lasts = OfferingSelector(zone=ZONES[0]), chance.uniform(30, 120)
        fault = made_fault("preemption", CLOUD, seconds=lasts, selector=zone)
        steps.append(CampaignStep(chance.uniform(0, seconds), fault))
    return steps


def _job_faults(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Several nodes of one job fail at about the same time."""
    return [
        CampaignStep(
            chance.uniform(0, seconds),
            made_fault(
                *("xid_error", JOB),
                xid_code=chance.choice(FATAL),
                fixed_by=chance.choice(REMEDIES),
                count=chance.randint(2, 3),
            ),
        )
        for _ in range(chance.randint(1, 3) if shape.gangs else 0)
    ]


def _rack_faults(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """The fabric of a rack fails: some of its nodes, or all, report it at about the same time."""
    return [
        CampaignStep(
            chance.uniform(0, seconds),
            made_fault(
                *("xid_error", RACK),
                xid_code=FABRIC_XID,
                fixed_by="replace",
                count=chance.randint(1, shape.rack_nodes),
            ),
        )
        for _ in range(chance.randint(1, 4) if shape.rack_nodes else 0)
    ]


def _resizes(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """Others change the size of their group."""
    return [
        CampaignStep(
            chance.uniform(0, seconds),
            OperatorAction(verb="resize-group", nodes=chance.randint(1, shape.nodes + 2)),
        )
        for _ in range(chance.randint(0, 2) if shape.adopted else 0)
    ]


def _relabels(chance: Random, shape: FleetShape, seconds: float) -> list[CampaignStep]:
    """The configuration changes: its nodes were launched with other labels."""
    return [
        CampaignStep(chance.uniform(0, seconds), OperatorAction(verb="relabel"))
        for _ in range(chance.randint(1, 2) if shape.drift else 0)
    ]


def keep(campaign: Campaign, numbers: Sequence[int]) -> Campaign:
    """The same campaign with only these steps, counted from 1."""
    kept = tuple(each for place, each in enumerate(campaign.steps, 1) if place in numbers)
    return Campaign(campaign.shape, kept, campaign.seconds)


def _launch_error(chance: Random) -> InjectedFault:
    # Only an ambiguous error may follow an effect: a cloud that answers "over quota" and launches
    # breaks its contract.
    effect = chance.choice(("before", "after", "after", "hang", "hang-after"))
    kinds = (
        ("TRANSIENT", "NETWORK") if effect.endswith("after") else ("TRANSIENT", "THROTTLE", "QUOTA")
    )
    return made_fault("launch_error", CLOUD, error=chance.choice(kinds), effect=effect)


def _lossy(kind: str, seconds: float, least: float, most: float) -> Callable[[Random], Any]:
    def draw_fault(chance: Random) -> InjectedFault:
        target = chance.choice(SERVICES)
        lasts = chance.uniform(1, seconds)
        return made_fault(kind, target, seconds=lasts, share=chance.uniform(least, most))

    return draw_fault


def _crash(chance: Random) -> InjectedFault:
    return made_fault("crash", chance.choice(SERVICES), seconds=chance.uniform(0.1, 8))


def _crash_after_effects(chance: Random) -> InjectedFault:
    target, effects = chance.choice(SERVICES), chance.randint(1, 12)
    return made_fault("crash", target, after_effects=effects, seconds=chance.uniform(0.1, 8))


def _stall(chance: Random) -> InjectedFault:
    target = chance.choice(("health-monitor", *SERVICES))
    effects = chance.randint(1, 12)
    return made_fault("stall", target, after_effects=effects, seconds=chance.uniform(4, 30))


def _xid(chance: Random) -> InjectedFault:
    return made_fault("xid_error", xid_code=chance.choice(FATAL), fixed_by=chance.choice(REMEDIES))


def _xid_once(codes: tuple[int, ...], chance: Random) -> InjectedFault:
    return made_fault("xid_error", xid_code=chance.choice(codes), momentary=True)


def _preemption(chance: Random) -> tuple[InjectedFault, Withdrawal]:
    fault = made_fault("preemption", seconds=chance.uniform(5, 150), xid_code=chance.choice(FATAL))
    return fault, chance.choice(("", "", "withdrawn", "withdrawn-broken"))


def _request(verb: OperatorVerb, low: float = 0, high: float = 0) -> Callable[[Random], Any]:
    return lambda c: OperatorAction(verb=verb, seconds=c.uniform(low, high) if high else 0.0)


def _outage(chance: Random) -> InjectedFault:
    """A service without connection, or a server that restarts."""
    target = chance.choice((*SERVICES, BROKER))
    kind: FaultKind = "restart" if target == BROKER else "network"
    return made_fault(kind, target, seconds=chance.uniform(0.2, 15))


_DRAWS: Final[list[Callable[[Random], Any]]] = [
    _request("breaker", 5, 60),
    _request("cancel"),
    _request("cordon", 5, 60),
    _outage,
    _request("drain"),
    lambda c: made_fault("endless_drain", WORKLOAD, seconds=c.uniform(1, 60)),
    # An agent that reports an XID of a healthy GPU.
    partial(_xid_once, FATAL),
    # A bad driver or agent: every node shows it, and none has it.
    lambda c: made_fault("false_report", ALL, xid_code=c.choice(FATAL)),
    _xid,
    lambda _: made_fault("boot_failure", CLOUD),
    lambda c: made_fault("hang", seconds=c.uniform(5, 25)),
    _request("hold", 10, 120),
    _crash,
    _crash_after_effects,
    # Long enough for its command to be delivered to another replica.
    lambda c: made_fault("launch_cut_off", CLOUD, seconds=c.uniform(2, 12)),
    _launch_error,
    lambda c: made_fault(
        "list_error", CLOUD, seconds=c.uniform(1, 20), effect=c.choice(("before", "hang"))
    ),
    _lossy("lost_acks", 60, 0.1, 1),
    _lossy("lost_answers", 30, 0.05, 0.4),
    _lossy("lost_requests", 30, 0.05, 0.4),
    partial(_xid_once, MILD),
    lambda c: made_fault("no_capacity", CLOUD, seconds=c.uniform(5, 90)),
    _preemption,
    lambda _: made_fault("power_off", fixed_by="reboot"),
    lambda c: made_fault("repeated_facts", count=c.randint(1, REPEATS_MAX)),
    _request("replace"),
    lambda c: OperatorAction(verb="scale", nodes=c.randint(1, 7)),
    _lossy("slow", 30, 0.1, 3),
    _stall,
    lambda _: made_fault("never_boots", CLOUD),
    lambda c: made_fault(
        "terminate_error", CLOUD, effect=c.choice(("before", "after", "hang", "hang-after"))
    ),
    wrong_ids,
    lambda _: made_fault("deleted"),
    lambda c: made_fault("network", WORKLOAD, seconds=c.uniform(1, 40)),
    lambda c: made_fault("no_drain_status", WORKLOAD, seconds=c.uniform(1, 60)),
]
_ALWAYS: Final[list[Callable[[Random], Any]]] = [_xid, _crash, _crash_after_effects]
"""Drawn in every run."""
