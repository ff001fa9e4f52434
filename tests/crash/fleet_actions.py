"""Actions of a round: every kind of saga, started by a fault or by a request. One row each.

An action starts and ends with a pool at rest: what it takes out of service it returns. It registers
which sagas must follow, and how each may end. A cancellation may come too late; the action then
continues from the refusal.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from schemas.pool_events import RequestAccepted, RequestRefused, Scaled
from schemas.saga_params import LaunchSpec, SagaParams
from tests.crash.consistency import DONE, ENDED, steps_of
from tests.crash.fleet_shape import REPLACED, Moment, Shape, moments_of_step
from tests.crash.rig import Rig
from tests.crash.scripted_agents import UNCONTAINED

WITH_EFFECT: Final = (
    *("cordon", "drain", "uncordon", "terminate", "provision"),
    *("reset", "reboot", "cordon-gpus"),
)
RUNGS: Final = ("reset-gpu", "reset-gpu", "reboot")
"""The ladder's remediations of one fault signature before a replacement."""
UNWOUND: Final = frozenset({"unwound"})
PASSING: Final = frozenset({"saga-open", "wrong-state", "budget-exhausted"})
PUBLISHED: Final = tuple(
    Moment(fact, "published")
    for fact in ("saga-opened", "cordoned", "drained", "terminated", "admitted", "node-replaced")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAction:
    """Something that a fleet has to handle."""

    name: str
    perform: Callable[[Rig], Awaitable[str]]
    """Performs it and waits for its end; returns the node."""
    kinds: tuple[str, ...]
    """The sagas at whose moments a process may be struck."""
    fits: Callable[[Shape], bool] = lambda _: True
    """Whether it is possible in such a fleet."""


def moments_of(kind: str, order: str, *, spares: bool = False) -> list[Moment]:
    """Every moment of a saga that goes well, in order."""
    launch = LaunchSpec(fleet="crash", provider="fake", instance_type="simulated")
    params = SagaParams(
        pool="training",
        node="old",
        new_node="new",
        launch=launch,
        order=order,
        spare=spares,
        promotes="spare" if spares and kind == "replace" else "",
    )
    found = [Moment("saga", "started")]
    for step in steps_of(kind, params):
        found += moments_of_step(step, WITH_EFFECT)
    return [*found, Moment("saga", "done")]


def moments(play: FleetAction, order: str, *, spares: bool = False) -> list[Moment]:
    """Return where a strike may be aimed; where a moment does not come, it is the action's end."""
    fault = [Moment("fault", "stored"), Moment("verdict", "stored"), *PUBLISHED]
    own = [moment for kind in play.kinds for moment in moments_of(kind, order, spares=spares)]
    return [*fault, *own] if "replace" in play.kinds else own


async def _asked(rig: Rig, verb: str, node: str, ends: frozenset[str] = DONE) -> str:
    """Request a saga of a node; return its ID."""
    answer = await rig.ask(verb, node=node)
    while isinstance(answer, RequestRefused) and answer.refusal in PASSING:
        # The previous saga has ended and is still in the pool's record.
        answer = await rig.ask(verb, node=node)
    assert isinstance(answer, RequestAccepted), answer
    assert answer.saga, answer
    rig.expect_saga(verb, node, ends)
    return answer.saga


async def _given_back(rig: Rig, node: str) -> None:
    """Uncordon a node, and wait until it is in service."""
    await rig.ended(await _asked(rig, "uncordon", node))


async def _replace(rig: Rig) -> str:
    node = await rig.break_a_node()
    await rig.until(lambda: any((m, about) == (REPLACED, node) for _, m, about in rig.signs))
    return node


async def _cordon(rig: Rig) -> str:
    node = await rig.oldest()
    await rig.ended(await _asked(rig, "cordon", node))
    await _given_back(rig, node)
    return node


async def _drain(rig: Rig) -> str:
    node = await rig.oldest()
    await rig.ended(await _asked(rig, "drain", node))
    await _given_back(rig, node)
    return node


async def _scale(rig: Rig) -> str:
    more = ("promote", "scale-up") if rig.shape.spares else ("scale-up",)
    for change, kinds in ((1, more), (-1, ("scale-down",))):
        rig.desired_max = max(rig.desired_max, rig.desired + change)
        before = [_ends(rig, kind) for kind in kinds]
        answer = await rig.ask("scale", nodes=rig.desired + change)
        assert isinstance(answer, Scaled), answer
        rig.desired += change
        for kind in kinds:
            rig.expect_saga(kind)

        def ended(kinds: tuple[str, ...] = kinds, before: list[int] = before) -> bool:
            now = [_ends(rig, kind) for kind in kinds]
            return all(after > was for after, was in zip(now, before, strict=True))

        await rig.until(ended)
    return "a node more and one less"


async def _reset(rig: Rig) -> str:
    return await _repaired_in_place(rig, "reset-gpu")


async def _reboot(rig: Rig) -> str:
    return await _repaired_in_place(rig, "reboot")


async def _reboot_by_provider(rig: Rig) -> str:
    node = await rig.oldest()
    assert rig.agents is not None
    rig.agents.unable.add(node)
    return await _repaired_in_place(rig, "reboot")


async def _repaired_in_place(rig: Rig, verb: str) -> str:
    """Request a reset or reboot of a healthy node, and wait until it is in service."""
    node = await rig.oldest()
    await rig.ended(await _asked(rig, verb, node))
    return node


async def _ladder(rig: Rig) -> str:
    """Break a node with a fault that a reset may clear; the next one takes the next rung."""
    node = await rig.oldest()
    kind = RUNGS[rig.rungs_used[node] % len(RUNGS)]
    rig.rungs_used[node] += 1
    before = _ends(rig, kind)
    rig.expect_saga(kind, node)
    await rig.fault(node, UNCONTAINED)
    await rig.until(lambda: _ends(rig, kind) > before)
    return node


async def _cordon_gpu(rig: Rig) -> str:
    """Break one GPU of a node, which is cordoned alone; clear the node, which lifts that."""
    node = await rig.oldest()
    for lifted in (False, True):
        before = _ends(rig, "cordon-gpus")
        rig.expect_saga("cordon-gpus", node)
        await (_given_back(rig, node) if lifted else rig.fault(node, UNCONTAINED))
        await rig.until(lambda before=before: _ends(rig, "cordon-gpus") > before)
        assert bool(rig.workload.cordoned_gpus[node]) is not lifted
    return node


def _ends(rig: Rig, kind: str) -> int:
    done = Moment("saga", "done")
    return sum(1 for _, moment, saga in rig.signs if moment == done and saga.startswith(f"{kind}-"))


async def _held_drain(rig: Rig, verb: str, ends: frozenset[str]) -> tuple[str, str]:
    """Drain a node whose work does not leave; return the node and its saga."""
    node = await rig.oldest()
    rig.workload.holding = True
    saga = await _asked(rig, verb, node, ends)
    wanted = Moment("provision" if _new_first(rig, verb) else "drain", "started")
    await rig.until(lambda: any((m, about) == (wanted, saga) for _, m, about in rig.signs))
    return node, saga


def _new_first(rig: Rig, verb: str) -> bool:
    return verb == "replace" and rig.shape.order == "provision_first"


async def _cancel(rig: Rig) -> str:
    node, saga = await _held_drain(rig, "drain", UNWOUND)
    await rig.ask("cancel", saga=saga)
    await rig.ended(saga)
    rig.workload.holding = False
    return node


async def _cancel_replace(rig: Rig) -> str:
    node, saga = await _held_drain(rig, "replace", ENDED)
    await rig.ask("cancel", saga=saga)
    rig.workload.holding = False
    await rig.ended(saga)  # unwound, a node that was healthy returns to service
    return node


async def _uncordon(rig: Rig) -> str:
    rig.workload.holding = True
    before = len(rig.signs)  # the node may have had a replacement before
    node = await rig.break_a_node(ENDED)
    wanted = Moment("provision" if _new_first(rig, "replace") else "drain", "started")

    def saga() -> str:
        start = f"replace-{node}-"
        seen = rig.signs[before:]
        found = (about for _, m, about in seen if m == wanted and about.startswith(start))
        return next(found, "")

    await rig.until(lambda: bool(saga()))
    answer = await rig.ask("uncordon", node=node)
    rig.workload.holding = False
    if isinstance(answer, RequestAccepted):
        rig.expect_saga("uncordon", node)
        await rig.ended(answer.saga)
    await rig.ended(saga())
    return node


async def _retry(rig: Rig) -> str:
    node, saga = await _held_drain(rig, "drain", UNWOUND)
    rig.workload.refusing = "uncordon"
    await rig.ask("cancel", saga=saga)
    stuck = Moment("saga", "stuck")
    await rig.until(lambda: any((m, about) == (stuck, saga) for _, m, about in rig.signs))
    rig.workload.refusing = ""
    rig.workload.holding = False
    await rig.ask("retry", saga=saga)
    await rig.ended(saga)
    return node


def find_action(name: str) -> FleetAction:
    """Return the action of a name."""
    return next(each for each in FLEET_ACTIONS if each.name == name)


def _without_spares(shape: Shape) -> bool:
    """An unwound replacement leaves its spare in service, and one node too many is removed."""
    return not shape.spares


def _cordons_gpus(shape: Shape) -> bool:
    """Whether a faulty GPU alone is taken out of use."""
    return "gpu" in shape.pool.get("health", {}).values()


def _has_scripted_agents(shape: Shape) -> bool:
    """Whether the agents are scripted ones."""
    return shape.provider == "fake"


FLEET_ACTIONS: Final = (
    FleetAction(name="replace", perform=_replace, kinds=("replace",)),
    FleetAction(name="cordon, uncordon", perform=_cordon, kinds=("cordon", "uncordon")),
    FleetAction(name="drain, uncordon", perform=_drain, kinds=("drain", "uncordon")),
    FleetAction(
        name="scale up and down",
        perform=_scale,
        kinds=("scale-up", "scale-down"),
        fits=_without_spares,
    ),
    FleetAction(name="drain, cancelled", perform=_cancel, kinds=("drain",)),
    FleetAction(
        name="replace, cancelled",
        perform=_cancel_replace,
        kinds=("replace",),
        fits=_without_spares,
    ),
    FleetAction(
        name="replace, uncordoned",
        perform=_uncordon,
        kinds=("replace", "uncordon"),
        fits=_without_spares,
    ),
    FleetAction(name="drain, cancelled, stuck, retried", perform=_retry, kinds=("drain",)),
    FleetAction(name="reset", perform=_reset, kinds=("reset-gpu",)),
    FleetAction(name="reboot", perform=_reboot, kinds=("reboot",)),
    FleetAction(
        name="reboot by the provider",
        perform=_reboot_by_provider,
        kinds=("reboot",),
        fits=_has_scripted_agents,
    ),
    FleetAction(name="ladder", perform=_ladder, kinds=("reset-gpu",)),
    FleetAction(
        name="cordon of a GPU",
        perform=_cordon_gpu,
        kinds=("cordon-gpus", "uncordon"),
        fits=_cordons_gpus,
    ),
    FleetAction(
        name="promote, and one less",
        perform=_scale,
        kinds=("promote", "scale-up", "scale-down"),
        fits=lambda shape: shape.spares > 0,
    ),
)
"""Every action; a campaign draws from them, and each round ends with a replacement."""
REPLACE: Final = FLEET_ACTIONS[0]
