"""Maps EC2's error codes to kinds: one row for each. Pure.

Source: the error codes of the EC2 API reference, and those that public autoscalers handle.
"""

from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import ErrorTable, ProviderError

KINDS: Final[dict[str, ProviderErrorKind]] = {
    "InsufficientInstanceCapacity": "CAPACITY",
    "InsufficientHostCapacity": "CAPACITY",
    "InsufficientReservedInstanceCapacity": "CAPACITY",
    "InsufficientCapacityOnHost": "CAPACITY",
    "UnfulfillableCapacity": "CAPACITY",
    "ReservationCapacityExceeded": "CAPACITY",
    "SpotMaxPriceTooLow": "CAPACITY",
    "VcpuLimitExceeded": "QUOTA",
    "InstanceLimitExceeded": "QUOTA",
    "MaxSpotInstanceCountExceeded": "QUOTA",
    "MaxFleetCountExceeded": "QUOTA",
    "VolumeLimitExceeded": "QUOTA",
    "Unsupported": "UNSUPPORTED",
    "UnsupportedOperation": "UNSUPPORTED",
    "InsufficientFreeAddressesInSubnet": "NETWORK",
    "RequestLimitExceeded": "THROTTLE",
    "Throttling": "THROTTLE",
    "ThrottlingException": "THROTTLE",
    "InternalError": "TRANSIENT",
    "InternalFailure": "TRANSIENT",
    "ServerInternal": "TRANSIENT",
    "ServiceUnavailable": "TRANSIENT",
    "Unavailable": "TRANSIENT",
    "AuthFailure": "AUTH",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "AUTH",
    "UnauthorizedOperation": "AUTH",
    "AccessDeniedException": "AUTH",
    "AccessDenied": "AUTH",
    "InvalidClientTokenId": "AUTH",
    "ExpiredToken": "AUTH",
    "RequestExpired": "AUTH",
    "SignatureDoesNotMatch": "AUTH",
    "OptInRequired": "AUTH",
    "PendingVerification": "AUTH",
    "IdempotentInstanceTerminated": "INVALID",
    "IdempotentParameterMismatch": "INVALID",
    "AWS.SimpleQueueService.NonExistentQueue": "INVALID",
    "QueueDoesNotExist": "INVALID",
    "InvalidAMIID.NotFound": "INVALID",
    "InvalidAMIID.Malformed": "INVALID",
    "InvalidAMIID.Unavailable": "INVALID",
    "InvalidGroup.NotFound": "INVALID",
    "InvalidInstanceType": "INVALID",
    "InvalidKeyPair.NotFound": "INVALID",
    "InvalidParameter": "INVALID",
    "InvalidParameterCombination": "INVALID",
    "InvalidParameterValue": "INVALID",
    "InvalidSubnetID.NotFound": "INVALID",
    "InvalidUserData.Malformed": "INVALID",
    "InvalidPlacementGroup.Unknown": "INVALID",
    "MissingParameter": "INVALID",
    "ValidationError": "INVALID",
}
"""Code -> kind."""

ABSENT: Final = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
"""The instance does not exist."""
TABLE: Final = ErrorTable(codes=KINDS, statuses={}, throttled_first=False)


def error_of(answer: Any) -> ProviderError:
    """Return the error for an error answer, as botocore parses it."""
    error = answer.get("Error", {})
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return TABLE.error(status, str(error.get("Code", "")), str(error.get("Message", "")))
