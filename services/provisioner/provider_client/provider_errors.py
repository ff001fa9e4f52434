"""The kinds of provider errors, what each kind allows, and the tables that map codes to kinds.

A provider plugin turns its cloud's errors into ProviderError. The rest of the provisioner uses
only the kind: whether a retry within the step can help, whether the call may have taken effect, and
what the error blocks for how long.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from schemas.enums import ProviderErrorKind
from services.primitives.backoff import RETRY_AFTER_SECONDS_MAX
from services.primitives.errors import NavarchError

T = TypeVar("T")

Scope = Literal["call", "offering", "type", "subnet", "quota", "account", "configuration"]
"""What an error blocks: this call only, (type, zone, market), (type, zone), one subnet, a region's
family of types, everything of the account, or the pool until its configuration changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRule:
    """Says what one kind of error allows."""

    scope: Scope
    retry_in_step: bool = False
    """A retry with the same token may succeed soon."""
    in_doubt: bool = False
    """The call may have taken effect: list and adopt before anything is retried."""
    block_seconds: float
    """How long the scope is blocked before one launch probes it; doubled after each probe that
    fails for the same reason."""
    block_max_seconds: float
    """The longest block. For capacity it is short enough to find it within a minute of its return;
    a probe is one call, however many launches wait."""
    passes: bool = False
    """It ends by itself, soon: a launch waits for it if nothing else is left."""


THROTTLED: Final = 429
SERVER_ERROR: Final = 500
COMMON_STATUSES: Final[Mapping[int, ProviderErrorKind]] = {
    401: "AUTH",
    403: "AUTH",
    404: "INVALID",
    THROTTLED: "THROTTLE",
}
"""HTTP status -> kind, for errors without a known code; providers may add further statuses."""
TEXT_CHARS_MAX: Final = 300
"""Of a provider's own message in an error."""

RULES: Final[dict[ProviderErrorKind, ErrorRule]] = {
    "CAPACITY": ErrorRule(scope="offering", block_seconds=5, block_max_seconds=45, passes=True),
    "QUOTA": ErrorRule(scope="quota", block_seconds=300, block_max_seconds=3600),
    "UNSUPPORTED": ErrorRule(scope="type", block_seconds=86_400, block_max_seconds=86_400),
    "NETWORK": ErrorRule(
        scope="subnet",
        retry_in_step=True,
        in_doubt=True,
        block_seconds=30,
        block_max_seconds=600,
        passes=True,
    ),
    "THROTTLE": ErrorRule(
        scope="account", retry_in_step=True, block_seconds=5, block_max_seconds=60, passes=True
    ),
    "TRANSIENT": ErrorRule(
        scope="call",
        retry_in_step=True,
        in_doubt=True,
        block_seconds=30,
        block_max_seconds=300,
        passes=True,
    ),
    "AUTH": ErrorRule(scope="account", block_seconds=60, block_max_seconds=600),
    "INVALID": ErrorRule(scope="configuration", block_seconds=60, block_max_seconds=600),
}
"""Kind -> what it allows."""


class ProviderError(NavarchError):
    """A provider call failed."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        scope: str = "",
        retry_after: float | None = None,
        unknown: str = "",
        status: int | None = None,
        code: str = "",
    ) -> None:
        """`scope` overrides that of the kind; `retry_after`: seconds, an hour at most.

        `unknown`: the provider's code if no table has it, which is reported to operators.
        `status` and `code`: of the provider's answer. Status 0: an accepted operation failed later;
        None: there was no answer.
        """
        super().__init__(f"{kind}: {message}")
        self.kind: ProviderErrorKind = kind
        self.message = message
        self.scope = scope or RULES[kind].scope
        self.unknown = unknown
        self.retry_after = min(retry_after, RETRY_AFTER_SECONDS_MAX) if retry_after else None
        self.status = status
        self.code = code

    def reword(self, change: Callable[[str], str]) -> None:
        """Change the message: a provider's text may repeat a credential."""
        self.message = change(self.message)
        self.args = (f"{self.kind}: {self.message}",)

    @property
    def rule(self) -> ErrorRule:
        """Return what this kind of error allows."""
        return RULES[self.kind]


def unreadable(body: bytes) -> str:
    """Describe an error whose body is not the provider's JSON: a proxy's page, for one."""
    return f"{len(body)} bytes that are not the provider's JSON"


async def none_if(call: Awaitable[T], *signs: int | str) -> T | None:
    """Await a call; return None if it fails with one of these HTTP statuses or error codes."""
    try:
        return await call
    except ProviderError as error:
        if error.status in signs or error.code in signs:
            return None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTable:
    """Maps a provider's error codes, and HTTP statuses without a known code, to kinds of errors."""

    codes: Mapping[str, ProviderErrorKind]
    statuses: Mapping[int, ProviderErrorKind] = field(default_factory=lambda: COMMON_STATUSES)
    throttled_first: bool = True
    """Status 429 decides, whatever the code."""

    def error(
        self,
        status: int,
        code: str,
        text: str,
        *,
        kind: ProviderErrorKind | None = None,
        retry_after: float | None = None,
    ) -> ProviderError:
        """Return the error for an answer; `kind`: by a rule beside the table.

        An unknown code is TRANSIENT, and the message says so. A kind by status alone is a guess, so
        the code is reported, too.
        """
        known = kind is not None or code in self.codes
        if self.throttled_first and status == THROTTLED:
            kind, known = "THROTTLE", True
        sure = known or status in self.statuses or status >= SERVER_ERROR
        expected = known or (not code and sure)
        where = f"HTTP {status} {code}".strip() if status else code
        return ProviderError(
            kind or self.codes.get(code) or self.statuses.get(status) or "TRANSIENT",
            f"{where}: {text[:TEXT_CHARS_MAX]}{'' if sure else ' (not known here)'}",
            retry_after=retry_after,
            unknown="" if expected else code or f"HTTP {status}",
            status=status,
            code=code,
        )
