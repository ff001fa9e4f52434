"""What a round brings about: every saga there is, by a fault or by what people ask. One row each.

A play begins with a pool at rest and leaves it at rest: what it takes out of service it gives back.
It says which sagas it calls for as it goes, and how each may end; where a cancellation comes too
late that is an answer as well, and the play goes on from what it was answered.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from schemas.pool_events import RequestAccepted, RequestRefused, Scaled
from schemas.saga_params import LaunchSpec, SagaParams
from tests.crash.agents import UNCONTAINED
from tests.crash.evidence import DONE, ENDED, steps_of
from tests.crash.rig import Rig
from tests.crash.shape import IN_EFFECT, REPLACED, Moment, Shape

WITH_EFFECT: Final = (
    *("cordon", "drain", "uncordon", "terminate", "provision"),
    *("reset", "reboot"),
)
RUNGS: Final = ("reset-gpu", "reset-gpu", "reboot")
"""What the ladder tries on a node with one fault signature before it is replaced."""
UNWOUND: Final = frozenset({"unwound"})
PASSING: Final = frozenset({"saga-open", "wrong-state", "budget-exhausted"})
TOLD: Final = tuple(
    Moment(fact, "told")
    for fact in ("saga-opened", "cordoned", "drained", "terminated", "admitted", "node-replaced")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One thing that may happen to a fleet."""

    name: str
    perform: Callable[[Rig], Awaitable[str]]
    """Brings it about and waits for its end; returns the node it was about."""
    kinds: tuple[str, ...]
    """The sagas in whose moments somebody may be struck."""
    fits: Callable[[Shape], bool] = lambda _: True
    """Whether it can be brought about in such a fleet."""


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
        found.append(Moment(step, "started"))
        if step in WITH_EFFECT:
            found.append(Moment(step, IN_EFFECT))
        found.append(Moment(step, "succeeded"))
    return [*found, Moment("saga", "done")]


def moments(play: Play, order: str, *, spares: bool = False) -> list[Moment]:
    """Where a blow may be aimed; a moment that does not come is struck at the play's end."""
    fault = [Moment("fault", "stored"), Moment("verdict", "stored"), *TOLD]
    own = [moment for kind in play.kinds for moment in moments_of(kind, order, spares=spares)]
    return [*fault, *own] if "replace" in play.kinds else own


async def _asked(rig: Rig, verb: str, node: str, ends: frozenset[str] = DONE) -> str:
    """Ask for a saga about a node; return its id."""
    answer = await rig.ask(verb, node=node)
    while isinstance(answer, RequestRefused) and answer.refusal in PASSING:
        # The saga before it has ended and is not yet taken off the pool's record.
        answer = await rig.ask(verb, node=node)
    assert isinstance(answer, RequestAccepted), answer
    assert answer.saga, answer
    rig.wish(verb, node, ends)
    return answer.saga


async def _given_back(rig: Rig, node: str) -> None:
    """Uncordon a node, and wait until it serves again."""
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
            rig.wish(kind)

        def ended(kinds: tuple[str, ...] = kinds, before: list[int] = before) -> bool:
            now = [_ends(rig, kind) for kind in kinds]
            return all(after > was for after, was in zip(now, before, strict=True))

        await rig.until(ended)
    return "a node more and one less"


async def _reset(rig: Rig) -> str:
    return await _mended(rig, "reset-gpu")


async def _reboot(rig: Rig) -> str:
    return await _mended(rig, "reboot")


async def _reboot_by_provider(rig: Rig) -> str:
    node = await rig.oldest()
    assert rig.agents is not None
    rig.agents.unable.add(node)
    return await _mended(rig, "reboot")


async def _mended(rig: Rig, verb: str) -> str:
    """Have a node reset or rebooted though it is well, and wait until it serves again."""
    node = await rig.oldest()
    await rig.ended(await _asked(rig, verb, node))
    return node


async def _ladder(rig: Rig) -> str:
    """Let a node fall ill of what a reset may cure; the same again takes the next rung."""
    node = await rig.oldest()
    kind = RUNGS[rig.climbed[node] % len(RUNGS)]
    rig.climbed[node] += 1
    before = _ends(rig, kind)
    rig.wish(kind, node)
    await rig.fault(node, UNCONTAINED)
    await rig.until(lambda: _ends(rig, kind) > before)
    return node


def _ends(rig: Rig, kind: str) -> int:
    done = Moment("saga", "done")
    return sum(1 for _, moment, saga in rig.signs if moment == done and saga.startswith(f"{kind}-"))


async def _held_drain(rig: Rig, verb: str, ends: frozenset[str]) -> tuple[str, str]:
    """Have a node taken away whose work does not leave; return it, and its saga at the drain."""
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
    await rig.ended(saga)  # unwound, the node serves again by itself: it was well
    return node


async def _uncordon(rig: Rig) -> str:
    rig.workload.holding = True
    before = len(rig.signs)  # the node may have been about to be replaced once already
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
        rig.wish("uncordon", node)
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


def named(name: str) -> Play:
    """The play of a name."""
    return next(play for play in PLAYS if play.name == name)


def _without_spares(shape: Shape) -> bool:
    """Unwound, a replacement leaves its spare in service: there is a node too many, and it goes."""
    return not shape.spares


def _played(shape: Shape) -> bool:
    """Whether the agents are the rig's own."""
    return shape.provider == "fake"


PLAYS: Final = (
    Play(name="replace", perform=_replace, kinds=("replace",)),
    Play(name="cordon, uncordon", perform=_cordon, kinds=("cordon", "uncordon")),
    Play(name="drain, uncordon", perform=_drain, kinds=("drain", "uncordon")),
    Play(
        name="scale up and down",
        perform=_scale,
        kinds=("scale-up", "scale-down"),
        fits=_without_spares,
    ),
    Play(name="drain, cancelled", perform=_cancel, kinds=("drain",)),
    Play(
        name="replace, cancelled",
        perform=_cancel_replace,
        kinds=("replace",),
        fits=_without_spares,
    ),
    Play(
        name="replace, uncordoned",
        perform=_uncordon,
        kinds=("replace", "uncordon"),
        fits=_without_spares,
    ),
    Play(name="drain, cancelled, stuck, retried", perform=_retry, kinds=("drain",)),
    Play(name="reset", perform=_reset, kinds=("reset-gpu",)),
    Play(name="reboot", perform=_reboot, kinds=("reboot",)),
    Play(
        name="reboot by the provider",
        perform=_reboot_by_provider,
        kinds=("reboot",),
        fits=_played,
    ),
    Play(name="ladder", perform=_ladder, kinds=("reset-gpu",)),
    Play(
        name="promote, and one less",
        perform=_scale,
        kinds=("promote", "scale-up", "scale-down"),
        fits=lambda shape: shape.spares > 0,
    ),
)
"""Every play; a campaign draws among them, and each round ends with a replacement."""
REPLACE: Final = PLAYS[0]
