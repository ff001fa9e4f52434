"""Maps Azure's error codes to kinds: one row for each. Pure.

An error comes as an HTTP error, or, after the request was accepted, as the error of its operation;
both name a code, and wrap others under `details`. Two codes have several meanings and rules beside
the table: SkuNotAvailable means no capacity for spot and a restriction otherwise, and
OperationNotAllowed may mean a spent core quota. Source: Azure's pages on spot errors, on
allocation failures and on Resource Manager errors, and codes that public autoscalers handle.
"""

from typing import Any, Final

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Market
from services.provisioner.provider_client.provider_errors import (
    COMMON_STATUSES,
    THROTTLED,
    ErrorTable,
    ProviderError,
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
    "VMSizeIsNotPermittedToEnableAcceleratedNetworking": "INVALID",
}
"""Code -> kind; the kind says the scope and whether to retry."""

SKU: Final = "SkuNotAvailable"
NOT_ALLOWED: Final = "OperationNotAllowed"
QUOTA: Final = "quota"
"""In the message of the latter, when it is about a quota."""
TABLE: Final = ErrorTable(
    codes=KINDS,
    statuses={**COMMON_STATUSES, 400: "INVALID", 409: "TRANSIENT", 412: "TRANSIENT"},
)
DEPTH_MAX: Final = 5
"""Of details within details."""


def kind_of(code: str, message: str, market: Market) -> ProviderErrorKind | None:
    """Return the kind of a code in a launch on this market; None: it is not known.

    Cores of spot machines have a quota of their own; quota blocks are kept by market anyway.
    """
    if code == SKU:
        return "CAPACITY" if market == "spot" else "UNSUPPORTED"
    if code == NOT_ALLOWED:
        return "QUOTA" if QUOTA in message.lower() else "TRANSIENT"
    return KINDS.get(code)


def error_of(
    status: int, body: Any, market: Market, retry_after: float | None = None
) -> ProviderError:
    """Return the error for an HTTP error, or for an operation's (status 0)."""
    code, text = _code_and_message(body)
    kind = kind_of(code, text, market) if status != THROTTLED else None
    return TABLE.error(status, code, text, kind=kind, retry_after=retry_after)


def _code_and_message(body: Any) -> tuple[str, str]:
    """Return the innermost of an error's wrapped codes that is known, else the outermost."""
    outer = body.get("error") if isinstance(body, dict) else None
    unwrapped = _unwrap(outer, DEPTH_MAX)
    found = [each for each in unwrapped if each[0] in (SKU, NOT_ALLOWED, *KINDS)]
    return found[-1] if found else next(iter(unwrapped), ("", ""))


def _unwrap(error: Any, depth: int) -> list[tuple[str, str]]:
    if not isinstance(error, dict) or depth == 0:
        return []
    inner = error.get("details") or []
    found = [(str(error.get("code", "")), str(error.get("message", "")))]
    for each in inner if isinstance(inner, list) else []:
        found += _unwrap(each, depth - 1)
    return found
