"""Instances, leaks and sweeps as text. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.sweeps import SweepAnswer, SweepLine
from services.gateway.views import InstanceView
from services.operator_text.quantities import age_since, elapsed, local_time

Instance = InstanceRecord | InstanceView
HOUR_SECONDS: Final = 3600
NAMES_MAX: Final = 20
INSTANCE_HEADERS: Final = (
    *("instance", "pool", "provider", "id", "state", "age", "$/hour", "remarks"),
)
LEAKED_HEADERS: Final = (
    *("instance", "pool", "provider", "id", "age", "since", "tries", "last try"),
    *("$/hour", "so far", "last error"),
)
SWEEP_HEADERS: Final = (
    *("action", "instance", "pool", "provider", "id", "$/hour", "authority", "when", "because"),
)


def instance_rows(records: Iterable[Instance], now: datetime) -> list[tuple[str, ...]]:
    """One row per instance: leaked ones first, then the most expensive."""
    ordered = sorted(
        records, key=lambda each: (each.state != "leaked", -each.dollars_per_hour, each.instance)
    )
    return [
        (
            each.instance,
            each.pool,
            each.provider,
            each.provider_id or "-",
            each.state,
            age_since(each.intended_at, now),
            _dollars(each.dollars_per_hour),
            each.error or "-",
        )
        for each in ordered
    ]


def instances_summary(records: Sequence[Instance]) -> str:
    """The number of instances and their total cost."""
    present = [each for each in records if each.state != "terminated"]
    if not present:
        return "There are no instances."
    return f"{_count(len(present), 'instance')}{_cost(present)}."


def leaked_rows(leaked: Iterable[Instance], now: datetime) -> list[tuple[str, ...]]:
    """One row per leak, the highest cost so far first."""
    ordered = sorted(leaked, key=lambda each: (-_so_far(each, now), each.instance))
    return [
        (
            each.instance,
            each.pool,
            each.provider,
            each.provider_id or "-",
            age_since(_since(each), now),
            local_time(_since(each)),
            str(each.removal_attempts or "-"),
            local_time(each.removal_tried_at) if each.removal_tried_at else "-",
            _dollars(each.dollars_per_hour),
            _dollars(_so_far(each, now)),
            each.error or "-",
        )
        for each in ordered
    ]


def leaks_summary(records: Sequence[Instance], now: datetime) -> str:
    """The total cost of the leaks, and what else is being terminated."""
    leaked = [each for each in records if each.state == "leaked"]
    orphaned = [each for each in records if each.state == "orphaned"]
    going = sum(each.state == "terminating" for each in records)
    rest = f" {_count(going, 'more instance')} {_are(going)} being terminated." if going else ""
    if orphaned:
        rest = f" {orphans_note(orphaned)}{rest}"
    if not leaked:
        return f"No instance is leaked.{rest}"
    so_far = sum(_so_far(each, now) for each in leaked)
    spent = f", ${so_far:.2f} so far" if so_far else ""
    again = "Termination is retried; `navarch sweep` retries now."
    return f"{_count(len(leaked), 'instance')} leaked{_cost(leaked)}{spent}. {again}{rest}"


def orphans_note(orphaned: Sequence[Instance]) -> str:
    """Return what orphans are, what they cost, and the commands that resolve them."""
    names = " ".join(sorted(each.instance for each in orphaned)[:NAMES_MAX])
    more = f" and {len(orphaned) - NAMES_MAX} more" if len(orphaned) > NAMES_MAX else ""
    return (
        f"{_count(len(orphaned), 'orphan')}{_cost(orphaned)}: {names}{more}. The store that knew "
        "them is lost. `navarch sweep --adopt NAME` makes one a node of its pool again, "
        "`navarch sweep --terminate NAME` removes it."
    )


def sweep_rows(answer: SweepAnswer) -> list[tuple[str, ...]]:
    """Return a table with one row per difference."""
    return [
        (
            each.verb,
            each.instance,
            each.pool or "-",
            each.provider,
            each.provider_id or "-",
            _dollars(each.dollars_per_hour),
            each.authority or "-",
            _when(each, performed=answer.performed),
            f"{each.reason}; not done{_held_for(each, answer)}: {each.held_back}"
            if each.held_back
            else each.reason,
        )
        for each in answer.lines
    ]


def held_lines(answer: SweepAnswer) -> tuple[SweepLine, ...]:
    """Return the machines that are held back, which have no record that shows them."""
    return tuple(each for each in answer.lines if each.gate)


def held_note(held: Sequence[SweepLine]) -> str:
    """Return how many machines are held back, their price, and the command that removes one."""
    price = sum(each.dollars_per_hour for each in held)
    cost = f", ${price:.2f} an hour" if price else ""
    return (
        f"{_count(len(held), 'machine')} {_are(len(held))} held back{cost}; "
        f"`navarch sweep --terminate {held[0].provider_id}` removes one all the same."
    )


def _held_for(line: SweepLine, answer: SweepAnswer) -> str:
    return f" for {age_since(line.since, answer.at)}" if line.since else ""


def sweep_notes(answer: SweepAnswer) -> list[str]:
    """Return sentences below the table."""
    words = [
        f"{provider} could not be listed, and is left out of the sweep: {reason}"
        for provider, reason in sorted(answer.unlisted.items())
    ]
    if not answer.fleet_known:
        words.append("The fleet ID is not known yet, so nothing at any provider is changed.")
    if not answer.lines and not words:
        words.append("Providers and records agree.")
    if answer.performed and any(each.outcome not in {"", "done"} for each in answer.lines):
        words.append("Failed actions are retried; `navarch leaked` shows the reasons.")
    if answer.lines and not answer.performed:
        words.append(
            f"Nothing was changed. {answer.replica} performs each action when it is due; "
            "`navarch sweep` performs now what is due."
        )
    return words


def _when(line: SweepLine, *, performed: bool) -> str:
    if line.held_back:
        return "-"
    if line.waits_seconds:
        return f"in {elapsed(line.waits_seconds)}"
    return (line.outcome or "-") if performed else "now"


def _since(record: Instance) -> datetime:
    return record.terminating_at or record.intended_at


def _so_far(record: Instance, now: datetime) -> float:
    """Its cost since it should have been terminated."""
    return record.dollars_per_hour * (now - _since(record)).total_seconds() / HOUR_SECONDS


def _cost(records: Iterable[Instance]) -> str:
    """Their total price, and how many have no known price."""
    prices = [each.dollars_per_hour for each in records]
    unknown = prices.count(0.0)
    if unknown == len(prices):
        return ", no price known"
    without = f", {unknown} of them without a known price" if unknown else ""
    return f", ${sum(prices):.2f} an hour{without}"


def _dollars(value: float) -> str:
    return f"{value:.2f}" if value else "-"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
