"""Says why the breaker is open, for people. Pure."""

from collections.abc import Mapping
from datetime import datetime

from schemas.breaker_state import OpenIncident
from schemas.duration import format_duration
from schemas.enums import BreakerCause
from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.disruption_budget import Allowance, room_at
from services.pool_manager.planner.safety import incidents


def spent_words(record: PoolRecord, allowed: Allowance, cause: BreakerCause, now: datetime) -> str:
    """Return which part of the budget is spent, by how much, and which setting it is."""
    spec = record.spec.budget
    match cause:
        case "level":
            return (
                f"{allowed.unavailable} of {rack_units.units(record, record.desired)} "
                f"{rack_units.called(record)} are out of service and "
                f"{allowed.level} may be (budget.max_unavailable: {spec.max_unavailable})"
            )
        case "rate":
            window = format_duration(float(spec.window))
            begun = record.voluntary if allowed.no_fault else record.disruptions
            at = room_at(begun, float(spec.window), now)
            then = f"; the next may begin at {clock(at)}" if at else ""
            return (
                f"{allowed.disruptions} {_what(allowed)} began within {window} and {allowed.rate} "
                f"may be ({_rate_setting(spec, allowed)}){then}"
            )
        case "fleet-level":
            return (
                f"{allowed.fleet_unavailable} nodes of the whole fleet are out of service and "
                f"{allowed.fleet_level} may be (the fleet's budget.max_unavailable)"
            )
        case "fleet-rate":
            key = "max_voluntary" if allowed.no_fault else "max_replacements"
            return (
                f"{allowed.fleet_disruptions} {_what(allowed)} began in the whole fleet and "
                f"{allowed.fleet_rate} may be within its window (the fleet's budget.{key})"
            )
        case "reset-rate":
            window = format_duration(float(spec.window))
            at = room_at(record.resets, float(spec.window), now)
            then = f"; the next may begin at {clock(at)}" if at else ""
            return (
                f"{allowed.resets} GPU resets and reboots began within {window} and "
                f"{allowed.reset_rate} may be ({_resets_setting(spec)}){then}"
            )
        case "fleet-reset-rate":
            return (
                f"{allowed.fleet_resets} GPU resets and reboots began in the whole fleet and "
                f"{allowed.fleet_reset_rate} may be within its window (the fleet's "
                "budget.max_resets)"
            )
        case _:
            return cause


def _what(allowed: Allowance) -> str:
    return "removals of nodes without a fault" if allowed.no_fault else "repairs"


def _rate_setting(spec: BudgetSpec, allowed: Allowance) -> str:
    if not allowed.no_fault:
        return f"budget.max_replacements: {spec.max_replacements}"
    if spec.max_voluntary is not None:
        return f"budget.max_voluntary: {spec.max_voluntary}"
    return f"half of budget.max_replacements: {spec.max_replacements}"


def _resets_setting(spec: BudgetSpec) -> str:
    if spec.max_resets is not None:
        return f"budget.max_resets: {spec.max_resets}"
    return f"three for each of budget.max_replacements: {spec.max_replacements}"


def wave_words(record: PoolRecord, held: Mapping[str, OpenIncident], now: datetime) -> str:
    """Return which incidents hold the pool's nodes back, until when, and who may end that."""
    each = ", ".join(incidents.describe_incident(what, incident) for what, incident in held.items())
    last = max(incidents.until(record, incident) for incident in held.values())
    one = "one incident" if len(held) == 1 else f"{len(held)} incidents"
    close = f"navarch breaker close {record.name} --reason TEXT"
    if now < last:
        return f"{one}: {each}; none is repaired before {clock(last)}; to repair all now: {close}"
    return (
        f"{one}: {each}; only nodes with evidence of their own are repaired, one at a time; "
        f"uncordon healthy ones, or repair all: {close}"
    )


def clock(at: datetime) -> str:
    """Return a moment within the day as `HH:MM:SS UTC`."""
    return f"{at:%H:%M:%S} UTC"
