"""What Azure's error codes mean here: one row for each. Pure.

A refusal comes as an HTTP error, or, after the request was accepted, as the error of its operation;
both name a code, and wrap others under `details`. Two codes stand for several things and have
rules beside the table: SkuNotAvailable is a drought for spot and a restriction otherwise, and
OperationNotAllowed is how a spent core quota is told. Source: Azure's pages on spot errors, on
allocation failures and on Resource Manager errors, and codes that public autoscalers have met.
"""

from collections.abc import Mapping
from typing import Any, Final

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Market
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    THROTTLED,
    ProviderError,
    unknown_code,
)

KINDS: Final[dict[str, ProviderErrorKind]] = {
    "AllocationFailed": "CAPACITY",
    "ZonalAllocationFailed": "CAPACITY",
    "OverconstrainedAllocationRequest": "CAPACITY",
    "OverconstrainedZonalAllocationRequest": "CAPACITY",
    "SpotPriceGreaterThanProvidedMaxPrice": "CAPACITY",
    "QuotaExceeded": "QUOTA",
    "PublicIPCountLimitReached": "QUOTA",
    "NotAvailableForSubscription": "UNSUPPORTED",
    "AvailabilityZoneNotSupported": "UNSUPPORTED",
    "LocationNotAvailableForResourceType": "UNSUPPORTED",
    "AzureSpotIsNotSupportedForThisVMSize": "UNSUPPORTED",
    "SubnetIsFull": "NETWORK",
    "TooManyRequests": "THROTTLE",
    "ResourceRequestsThrottled": "THROTTLE",
    "SubscriptionRequestsThrottled": "THROTTLE",
    "AnotherOperationInProgress": "TRANSIENT",
    "Conflict": "TRANSIENT",
    "GatewayTimeout": "TRANSIENT",
    "InternalError": "TRANSIENT",
    "InternalExecutionError": "TRANSIENT",
    "InternalOperationError": "TRANSIENT",
    "InternalServerError": "TRANSIENT",
    "NetworkInterfaceNotFound": "TRANSIENT",
    "NetworkingInternalOperationError": "TRANSIENT",
    "NicInUse": "TRANSIENT",
    "NicReservedForAnotherVm": "TRANSIENT",
    "OperationPreempted": "TRANSIENT",
    "OSProvisioningInternalError": "TRANSIENT",
    "OSProvisioningTimedOut": "TRANSIENT",
    "PreconditionFailed": "TRANSIENT",
    "PublicIPAddressCannotBeDeleted": "TRANSIENT",
    "PublicIPAddressInUse": "TRANSIENT",
    "ReferencedResourceNotProvisioned": "TRANSIENT",
    "RetryableError": "TRANSIENT",
    "RetryableErrorDueToAnotherOperation": "TRANSIENT",
    "ServerTimeout": "TRANSIENT",
    "ServiceUnavailable": "TRANSIENT",
    "VMStartTimedOut": "TRANSIENT",
    "AuthenticationFailed": "AUTH",
    "AuthorizationFailed": "AUTH",
    "AzureSpotFeatureNotEnabledForSubscription": "AUTH",
    "ExpiredAuthenticationToken": "AUTH",
    "InvalidAuthenticationToken": "AUTH",
    "InvalidAuthenticationTokenTenant": "AUTH",
    "LinkedAuthorizationFailed": "AUTH",
    "MissingSubscriptionRegistration": "AUTH",
    "ReadOnlyDisabledSubscription": "AUTH",
    "SubscriptionNotFound": "AUTH",
    "SubscriptionNotRegistered": "AUTH",
    "AzureSpotVMNotSupportedInAvailabilitySet": "INVALID",
    "BadRequest": "INVALID",
    "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines": "INVALID",
    "GalleryImageNotFound": "INVALID",
    "ImageNotFound": "INVALID",
    "InvalidApiVersionParameter": "INVALID",
    "InvalidParameter": "INVALID",
    "InvalidRequestContent": "INVALID",
    "InvalidRequestFormat": "INVALID",
    "InvalidResourceReference": "INVALID",
    "LinkedInvalidPropertyId": "INVALID",
    "MarketplacePurchaseEligibilityFailed": "INVALID",
    "MaxPriceValueInvalid": "INVALID",
    "NotFound": "INVALID",
    "OSProvisioningClientError": "INVALID",
    "PlatformImageNotFound": "INVALID",
    "PropertyChangeNotAllowed": "INVALID",
    "RequestDisallowedByPolicy": "INVALID",
    "ResourceGroupNotFound": "INVALID",
    "ResourceNotFound": "INVALID",
    "ScopeLocked": "INVALID",
    "SubnetNotFound": "INVALID",
    "VMPriorityCannotBeApplied": "INVALID",
}
"""Code -> kind; the kind says the scope and whether to retry."""

SKU: Final = "SkuNotAvailable"
NOT_ALLOWED: Final = "OperationNotAllowed"
QUOTA: Final = "quota"
"""In the text of the latter, when it is about one."""

STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    **COMMON_STATUSES,
    400: "INVALID",
    409: "TRANSIENT",
    412: "TRANSIENT",
}
"""HTTP status -> kind, where no code is known."""
DEEP_MAX: Final = 5
"""Of details within details."""


class AzureError(ProviderError):
    """A refusal, with its HTTP status (0: an operation's) and the code that it was judged by."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        retry_after: float | None = None,
        unknown: str = "",
    ) -> None:
        """Keep what the provider itself must look at."""
        super().__init__(kind, message, retry_after=retry_after, unknown=unknown)
        self.status = status
        self.code = code


def meaning(code: str, message: str, market: Market) -> ProviderErrorKind:
    """What a code stands for in a launch on this market; `TRANSIENT` where it is not known.

    Cores of spot machines have a quota of their own; blocks of quota are kept by market anyway.
    """
    if code == SKU:
        return "CAPACITY" if market == "spot" else "UNSUPPORTED"
    if code == NOT_ALLOWED:
        return "QUOTA" if QUOTA in message.lower() else "TRANSIENT"
    return KINDS.get(code, "TRANSIENT")


def is_known(code: str) -> bool:
    """Whether there is a row or a rule for it."""
    return code in KINDS or code in (SKU, NOT_ALLOWED)


def error_of(
    status: int, body: Any, market: Market, retry_after: float | None = None
) -> AzureError:
    """What an HTTP error, or an operation's (status 0), stands for; an unknown one says so."""
    code, text = _said(body)
    known = is_known(code)
    kind = meaning(code, text, market)
    if status == THROTTLED:
        kind = "THROTTLE"
    elif not known:
        kind = STATUSES.get(status, "TRANSIENT")
    where = f"HTTP {status} {code}".strip() if status else code
    by_status = status in STATUSES and not code
    sure = known or status in STATUSES or status >= SERVER_ERROR
    note = "" if sure else " (a code that is not known here)"
    return AzureError(
        kind,
        f"{where}: {text[:TEXT_CHARS_MAX]}{note}",
        status=status,
        code=code,
        retry_after=retry_after,
        unknown=unknown_code(code, status, known=known or status == THROTTLED or by_status),
    )


def _said(body: Any) -> tuple[str, str]:
    """Of an error and what it wraps, the innermost whose code is known; else the outermost."""
    outer = body.get("error") if isinstance(body, dict) else None
    found = [each for each in _unwrapped(outer, DEEP_MAX) if is_known(each[0])]
    if found:
        return found[-1]
    return next(iter(_unwrapped(outer, DEEP_MAX)), ("", ""))


def _unwrapped(error: Any, deep: int) -> list[tuple[str, str]]:
    if not isinstance(error, dict) or deep == 0:
        return []
    inner = error.get("details") or []
    said = [(str(error.get("code", "")), str(error.get("message", "")))]
    for each in inner if isinstance(inner, list) else []:
        said += _unwrapped(each, deep - 1)
    return said
