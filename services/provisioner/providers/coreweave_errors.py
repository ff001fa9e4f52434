"""Maps CoreWeave's errors to kinds: one row for each. Pure.

After a node pool was accepted, an error comes as one of the pool's conditions or events; before
that as a Status of Kubernetes (`kubernetes_errors.py`). Source: CoreWeave's pages on node pools.
"""

from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    TEXT_CHARS_MAX,
    ProviderError,
)

CONDITIONS: Final[dict[tuple[str, str], ProviderErrorKind | None]] = {
    ("Validated", "Valid"): None,
    ("Validated", "Invalid"): "INVALID",
    ("Capacity", "Sufficient"): None,
    ("Capacity", "Partial"): "CAPACITY",
    ("Capacity", "NoneAvailable"): "CAPACITY",
    ("Quota", "Under"): None,
    ("Quota", "Over"): "QUOTA",
}
"""Type and reason of a pool's condition -> kind; None: no error."""
RENAMED: Final[dict[str, str]] = {"Valid": "Validated"}
"""Type of a condition as clusters show it -> as CoreWeave's pages called it before."""
DENIED: Final[dict[str, ProviderErrorKind]] = {
    "Validated": "INVALID",
    "Capacity": "CAPACITY",
    "Quota": "QUOTA",
}
"""Type of a condition that is False for a reason not in CONDITIONS -> kind."""
EVENTS: Final[dict[str, ProviderErrorKind]] = {
    "CWInsufficientCapacity": "CAPACITY",
    "CWOverQuota": "QUOTA",
}
"""Reason of an event about a pool -> kind; other events are no errors."""


def pool_error(pool: Any, events: list[Any]) -> ProviderError | None:
    """Return why a node pool will get no node; None: no known reason."""
    for each in conditions_of(pool):
        kind = _kind_of(each)
        if kind is not None:
            name = f"{each.get('type')}={each.get('reason')}"
            known = _named(each) in CONDITIONS
            return _because(kind, f"condition {name}", each, "" if known else name)
    for each in events:
        kind = EVENTS.get(str(each.get("reason", "")))
        if kind is not None:
            return _because(kind, f"event {each.get('reason')}", each)
    return None


def is_settled(pool: Any) -> bool:
    """Return whether every condition of a pool is known and good."""
    good = {
        _named(each)[0]
        for each in conditions_of(pool)
        if _named(each) in CONDITIONS and _kind_of(each) is None
    }
    return good >= set(DENIED)


def conditions_of(pool: Any) -> list[Any]:
    """Return the conditions of a pool, if it has any."""
    return list((pool.get("status") or {}).get("conditions") or ())


def _named(condition: Any) -> tuple[str, str]:
    """The type and reason of a condition, by the names of CONDITIONS."""
    name = str(condition.get("type", ""))
    return RENAMED.get(name, name), str(condition.get("reason", ""))


def _kind_of(condition: Any) -> ProviderErrorKind | None:
    name, reason = _named(condition)
    if (name, reason) in CONDITIONS:
        return CONDITIONS[name, reason]
    return DENIED.get(name) if condition.get("status") == "False" else None


def _because(kind: ProviderErrorKind, what: str, report: Any, unknown: str = "") -> ProviderError:
    text = str(report.get("message", ""))[:TEXT_CHARS_MAX]
    return ProviderError(kind, f"the node pool's {what}: {text}", unknown=unknown)
