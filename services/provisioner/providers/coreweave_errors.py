"""What CoreWeave's refusals mean here: one row for each. Pure.

A refusal comes as a Status of the Kubernetes API, whose reasons are Kubernetes' own; or, after a
node pool was accepted, as one of the pool's conditions or events. Source: the reasons in
Kubernetes' API machinery, and CoreWeave's pages on node pools.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    THROTTLED,
    ProviderError,
    unknown_code,
)

REASONS: Final[dict[str, ProviderErrorKind]] = {
    "Unauthorized": "AUTH",
    "Forbidden": "AUTH",
    "AlreadyExists": "INVALID",
    "BadRequest": "INVALID",
    "Invalid": "INVALID",
    "MethodNotAllowed": "INVALID",
    "NotAcceptable": "INVALID",
    "NotFound": "INVALID",
    "RequestEntityTooLarge": "INVALID",
    "UnsupportedMediaType": "INVALID",
    "TooManyRequests": "THROTTLE",
    "Conflict": "TRANSIENT",
    "Expired": "TRANSIENT",
    "Gone": "TRANSIENT",
    "InternalError": "TRANSIENT",
    "ServerTimeout": "TRANSIENT",
    "ServiceUnavailable": "TRANSIENT",
    "StoreReadError": "TRANSIENT",
    "Timeout": "TRANSIENT",
}
"""Reason of a Status -> kind."""

CONDITIONS: Final[dict[tuple[str, str], ProviderErrorKind | None]] = {
    ("Validated", "Valid"): None,
    ("Validated", "Invalid"): "INVALID",
    ("Capacity", "Sufficient"): None,
    ("Capacity", "Partial"): "CAPACITY",
    ("Capacity", "NoneAvailable"): "CAPACITY",
    ("Quota", "Under"): None,
    ("Quota", "Over"): "QUOTA",
}
"""Type and reason of a pool's condition -> kind; None: all is well in this respect."""
DENIED: Final[dict[str, ProviderErrorKind]] = {
    "Validated": "INVALID",
    "Capacity": "CAPACITY",
    "Quota": "QUOTA",
}
"""Type of a condition that is False for a reason that is not above -> kind."""
EVENTS: Final[dict[str, ProviderErrorKind]] = {
    "CWInsufficientCapacity": "CAPACITY",
    "CWOverQuota": "QUOTA",
}
"""Reason of an event about a pool -> kind; any other says nothing of it."""

STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    **COMMON_STATUSES,
    400: "INVALID",
    409: "TRANSIENT",
    422: "INVALID",
}
"""HTTP status -> kind, where no reason is known."""
QUOTA: Final = "exceeded quota"
"""How Kubernetes words a spent quota of its own, under the reason Forbidden."""


class KubernetesError(ProviderError):
    """A refusal of the Kubernetes API, with its HTTP status."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        status: int,
        retry_after: float | None = None,
        unknown: str = "",
    ) -> None:
        """Keep what the provider itself must look at."""
        super().__init__(kind, message, retry_after=retry_after, unknown=unknown)
        self.status = status


def error_of(status: int, body: Any, retry_after: float | None = None) -> KubernetesError:
    """What a refusal stands for; what is not known is TRANSIENT and says its reason."""
    said = body if isinstance(body, dict) else {}
    reason, text = str(said.get("reason", "")), str(said.get("message", ""))
    kind = REASONS.get(reason) or STATUSES.get(status) or "TRANSIENT"
    if status == THROTTLED:
        kind = "THROTTLE"
    elif QUOTA in text:
        kind = "QUOTA"
    sure = reason in REASONS or status in STATUSES or status >= SERVER_ERROR
    note = "" if sure else " (a reason that is not known here)"
    details = said.get("details")
    asked = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return KubernetesError(
        kind,
        f"{f'HTTP {status} {reason}'.strip()}: {text[:TEXT_CHARS_MAX]}{note}",
        status=status,
        retry_after=float(asked) if asked else retry_after,
        unknown=unknown_code(
            reason,
            status,
            known=reason in REASONS or status == THROTTLED or (status in STATUSES and not reason),
        ),
    )


def judge(pool: Any, events: list[Any]) -> ProviderError | None:
    """Why a node pool will get no node; None: nothing speaks against it."""
    for each in conditions_of(pool):
        kind = _kind_of(each)
        if kind is not None:
            name = f"{each.get('type')}={each.get('reason')}"
            known = (each.get("type"), each.get("reason")) in CONDITIONS
            return _because(kind, f"condition {name}", each, "" if known else name)
    for each in events:
        kind = EVENTS.get(str(each.get("reason", "")))
        if kind is not None:
            return _because(kind, f"event {each.get('reason')}", each)
    return None


def is_settled(pool: Any) -> bool:
    """Whether a pool has been judged in every respect, and found well."""
    well = {
        each.get("type")
        for each in conditions_of(pool)
        if (each.get("type"), each.get("reason")) in CONDITIONS and _kind_of(each) is None
    }
    return well >= set(DENIED)


def conditions_of(pool: Any) -> list[Any]:
    """The conditions of a pool, as far as it has any."""
    return list((pool.get("status") or {}).get("conditions") or ())


def _kind_of(condition: Any) -> ProviderErrorKind | None:
    name, reason = str(condition.get("type", "")), str(condition.get("reason", ""))
    if (name, reason) in CONDITIONS:
        return CONDITIONS[name, reason]
    return DENIED.get(name) if condition.get("status") == "False" else None


def _because(kind: ProviderErrorKind, what: str, said: Any, unknown: str = "") -> ProviderError:
    text = str(said.get("message", ""))[:TEXT_CHARS_MAX]
    return ProviderError(kind, f"the node pool's {what}: {text}", unknown=unknown)
