"""One taxonomy for every provider's errors, and what each kind allows.

A provider plugin turns whatever its cloud says into a ProviderError. The rest of the provisioner
looks at the kind alone: whether another try within the step can help, whether the call may have
taken effect all the same, and what the error blocks and for how long.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from schemas.enums import ProviderErrorKind
from services.primitives.errors import NavarchError

Scope = Literal["call", "offering", "type", "subnet", "quota", "account", "configuration"]
"""What an error blocks: this call only, (type, zone, market), (type, zone), one subnet, a region's
family of types, everything of the account, or the pool until its configuration changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    """What one kind of error allows."""

    scope: Scope
    retry_in_step: bool
    """Another try of the same intention may succeed soon; it reuses the same token."""
    in_doubt: bool
    """The call may have taken effect: list and adopt before anything is tried again."""
    block_seconds: float
    """How long the scope is left alone before one launch tries it again; twice as long after each
    try that fails of the same."""
    block_max_seconds: float
    """The longest that becomes. Of capacity short enough to have it within a minute of its return;
    it is one call, whatever number of launches wait."""
    passes: bool
    """It passes by itself, soon: a launch waits for it where nothing else is left."""


THROTTLED: Final = 429
SERVER_ERROR: Final = 500
COMMON_STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    401: "AUTH",
    403: "AUTH",
    404: "INVALID",
    THROTTLED: "THROTTLE",
}
"""HTTP status -> kind, where a provider says nothing else that is known. What further statuses
mean, each provider says of itself."""
TEXT_CHARS_MAX: Final = 300
"""Of a provider's own words in an error."""

RULES: Final[dict[ProviderErrorKind, ErrorRule]] = {
    "CAPACITY": ErrorRule(
        scope="offering",
        retry_in_step=False,
        in_doubt=False,
        block_seconds=5,
        block_max_seconds=45,
        passes=True,
    ),
    "QUOTA": ErrorRule(
        scope="quota",
        retry_in_step=False,
        in_doubt=False,
        block_seconds=300,
        block_max_seconds=3600,
        passes=False,
    ),
    "UNSUPPORTED": ErrorRule(
        scope="type",
        retry_in_step=False,
        in_doubt=False,
        block_seconds=86_400,
        block_max_seconds=86_400,
        passes=False,
    ),
    "NETWORK": ErrorRule(
        scope="subnet",
        retry_in_step=True,
        in_doubt=True,
        block_seconds=30,
        block_max_seconds=600,
        passes=True,
    ),
    "THROTTLE": ErrorRule(
        scope="account",
        retry_in_step=True,
        in_doubt=False,
        block_seconds=5,
        block_max_seconds=60,
        passes=True,
    ),
    "TRANSIENT": ErrorRule(
        scope="call",
        retry_in_step=True,
        in_doubt=True,
        block_seconds=30,
        block_max_seconds=300,
        passes=True,
    ),
    "AUTH": ErrorRule(
        scope="account",
        retry_in_step=False,
        in_doubt=False,
        block_seconds=60,
        block_max_seconds=600,
        passes=False,
    ),
    "INVALID": ErrorRule(
        scope="configuration",
        retry_in_step=False,
        in_doubt=False,
        block_seconds=60,
        block_max_seconds=600,
        passes=False,
    ),
}
"""Kind -> what it allows."""


class ProviderError(NavarchError):
    """A provider did not do what was asked."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        scope: str = "",
        retry_after: float | None = None,
        unknown: str = "",
    ) -> None:
        """Say what kind it is, what exactly is blocked, and how long the provider says to wait.

        `unknown` is the provider's own code where there is no row for it: people are told.
        """
        super().__init__(f"{kind}: {message}")
        self.kind: ProviderErrorKind = kind
        self.message = message
        self.scope = scope or RULES[kind].scope
        self.unknown = unknown
        self.retry_after = retry_after
        """Seconds; None where the provider names none."""

    @property
    def rule(self) -> ErrorRule:
        """What this kind of error allows."""
        return RULES[self.kind]


def unknown_code(code: str, status: int, *, known: bool) -> str:
    """The code that people are told of; empty where there is a row, or a server just failed.

    What a code without a row means is guessed from the status, and must not pass for known.
    """
    if known or (not code and status >= SERVER_ERROR):
        return ""
    return code or f"HTTP {status}"
