"""What EC2's error codes mean here: one row for each. Pure.

Source: the error codes of the EC2 API reference, and what public autoscalers have met in practice.
"""

from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.provisioner.provider_client.provider_errors import (
    SERVER_ERROR,
    TEXT_CHARS_MAX,
    ProviderError,
    unknown_code,
)

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
    "InvalidClientTokenId": "AUTH",
    "ExpiredToken": "AUTH",
    "RequestExpired": "AUTH",
    "SignatureDoesNotMatch": "AUTH",
    "OptInRequired": "AUTH",
    "PendingVerification": "AUTH",
    "IdempotentInstanceTerminated": "INVALID",
    "IdempotentParameterMismatch": "INVALID",
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
"""A removal that is answered so has nothing to remove."""


def code_of(answer: Any) -> str:
    """The code of an error answer, as botocore parses it."""
    return str(answer.get("Error", {}).get("Code", ""))


def error_of(answer: Any) -> ProviderError:
    """The error that an answer stands for; what is not known is TRANSIENT and says its code."""
    code = code_of(answer)
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = str(answer.get("Error", {}).get("Message", ""))[:TEXT_CHARS_MAX]
    known = code in KINDS or status >= SERVER_ERROR
    note = "" if known else " (a code that is not known here)"
    return ProviderError(
        KINDS.get(code, "TRANSIENT"),
        f"{code}: {text}{note}",
        unknown=unknown_code(code, status, known=code in KINDS),
    )
