"""Files in the words of the original Navarch's simulator, with what its defaults mean. Pure.

A file is read so if it has a word that only the original's files have, or says so. What is absent
in such a file is written into it, so that the rest of the simulation has one meaning of each key.
docs/simulation.md has the list.
"""

from collections.abc import Iterator
from typing import Any, Final

from schemas.duration import parse_duration

COMPAT: Final = "original"
"""The value of `compat`."""
ONCE: Final = frozenset({"xid_error", "memory_error", "nvlink_error"})
"""Faults that a node reports once; the hardware is in order afterwards."""
FATAL_XIDS: Final = frozenset({43, 48, 63, 74, 79, 95})
"""Those that the original calls fatal."""
XIDS: Final = (13, 31, 32, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95)
"""Equally frequent where no distribution is given."""
OUTAGE_XID: Final = 79
CELSIUS: Final = 95
PROVIDERS: Final = {"gcp": 50, "aws": 35, "lambda": 15}
REGIONS: Final = {
    "us-central1": 30,
    "us-east1": 25,
    "us-west1": 20,
    "europe-west1": 15,
    "asia-east1": 10,
}
ZONES: Final = ("a", "b", "c", "d")
STARTUP: Final = {"pattern": "linear", "duration": "30s", "jitter_percent": 10}
RECOVERY_SECONDS_MIN: Final = 10
DEVIATION: Final = 0.25
"""Of the mean, where none is given."""
READ_AS: Final = (
    "read as a file of the original's simulator, because of `{}`; "
    "`compat: navarch` reads it as Navarch's own"
)
CASCADES: Final = (
    "cascades are bounded: a failure causes at most three others directly, and "
    "max_affected_percent is of the whole chain, where it is of each link in the original"
)
CORRELATED: Final = (
    "correlated_failures has no effect, as in the original, whose simulator reads it nowhere"
)
TIME_SCALE: Final = "time_scale has no effect: virtual time passes as fast as it can"
UNLIMITED: Final[dict[str, Any]] = {
    "max_unavailable": "100%",
    "max_replacements": "unlimited",
    "max_resets": "unlimited",
    "max_quarantined": "100%",
}


def sign_of(raw: dict[str, Any]) -> str:
    """Return what says that a file is in the original's words; empty: nothing does."""
    match raw.get("compat"):
        case "original":
            return "compat"
        case "navarch":
            return ""
    if raw.get("stress") is not None and raw.get("fleet") == []:
        return "fleet: []"
    params = [_mapping(_mapping(each).get("params")) for each in _list(raw.get("events"))]
    return "log_message" if any("log_message" in each for each in params) else ""


def translate(raw: dict[str, Any]) -> list[str]:
    """Write what the file leaves out into it; returns what differs from it, in sentences."""
    sign = sign_of(raw)
    notes = [] if sign == "compat" else [READ_AS.format(sign)]
    for event in _list(raw.get("events")):
        action = _mapping(event).get("action")
        params = _mapping(_mapping(event).get("params"))
        if action == "wait_for_status":
            params.setdefault("timeout", "30s")
        elif action == "inject_failure" and (failure := str(params.get("failure_type"))) in ONCE:
            params.setdefault("duration", "0s")
        elif action == "inject_failure" and failure == "temperature":
            params.setdefault("temperature", CELSIUS)
    stress = raw.get("stress")
    return [*notes, *(_stress(stress) if isinstance(stress, dict) else ())]


def without_limits(raw: dict[str, Any]) -> None:
    """Take the budget and the breaker, which the original does not have, out of a stress run."""
    if not (fleet := _at(raw, "stress", "fleet_gen")):
        return
    pool = _section(fleet, "pool")
    pool.setdefault("budget", UNLIMITED)
    _section(pool, "health").setdefault("incident", {"hold": "0s"})
    _section(raw, "settings").setdefault("budget", UNLIMITED)


def _stress(stress: dict[str, Any]) -> Iterator[str]:
    if stress.pop("time_scale", None) is not None:
        yield TIME_SCALE
    stress.setdefault("duration", "10m")
    stress.setdefault("metrics_interval", "5s")
    stress.setdefault("clock", "after_startup")
    fleet = stress.get("fleet_gen")
    if isinstance(fleet, dict):
        _fleet(fleet)
    chaos = stress.get("chaos")
    if isinstance(chaos, dict):
        yield from _chaos(chaos)


def _fleet(fleet: dict[str, Any]) -> None:
    for key, mix in (("providers", PROVIDERS), ("regions", REGIONS)):
        if not fleet.get(key):
            fleet[key] = dict(mix)
    zones = fleet.get("zones") or {}
    if isinstance(zones, dict) and isinstance(fleet["regions"], dict):
        all_zones = {name: [f"{name}-{each}" for each in ZONES] for name in fleet["regions"]}
        fleet["zones"] = {**all_zones, **zones}
    if not _mapping(fleet.get("startup")).get("pattern"):
        fleet["startup"] = dict(STARTUP)


def _chaos(chaos: dict[str, Any]) -> Iterator[str]:
    # What is not enabled is off.
    chaos.setdefault("enabled", False)
    chaos.setdefault("lasting", False)
    chaos.setdefault("hot_celsius", CELSIUS)
    if not chaos.get("xid_distribution"):
        chaos["xid_distribution"] = dict.fromkeys(map(str, XIDS), 1)
    cascading = chaos.get("cascading") or {}
    if isinstance(cascading, dict):
        chaos["cascading"] = {"enabled": False, "scope": "random", "min_delay": "0s", **cascading}
        _delays(chaos["cascading"])
        if chaos["enabled"] is True and chaos["cascading"]["enabled"] is True:
            yield CASCADES
    recovery = chaos.get("recovery") or {}
    if isinstance(recovery, dict):
        least = f"{RECOVERY_SECONDS_MIN}s"
        off = {"enabled": False, "replace_fatal": False, "mean_time": least, "min_time": least}
        chaos["recovery"] = {**off, **recovery}
        if not recovery.get("std_dev"):
            mean = _seconds(chaos["recovery"]["mean_time"])
            chaos["recovery"]["std_dev"] = f"{DEVIATION * mean:g}s"
    for outage in _list(chaos.get("scheduled_outages")):
        if isinstance(outage, dict) and outage.get("failure_type") == "xid_error":
            outage.setdefault("xid", OUTAGE_XID)
    if chaos.pop("correlated_failures", None):
        yield CORRELATED


def _delays(cascading: dict[str, Any]) -> None:
    low, high = _seconds(cascading["min_delay"]), _seconds(cascading.get("max_delay", "0s"))
    if high <= low:
        cascading["max_delay"] = f"{low + 1:g}s"


def _seconds(text: Any) -> float:
    """Of a duration; 0 where it is none, which is reported when it is read."""
    try:
        return float(parse_duration(text))
    except (TypeError, ValueError):
        return 0.0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _section(raw: dict[str, Any], key: str) -> dict[str, Any]:
    if raw.get(key) is None:
        raw[key] = {}
    return _mapping(raw[key])


def _at(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        raw = _mapping(raw.get(key))
    return raw
