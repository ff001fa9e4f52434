"""The provisioner proposes removals to the pool-manager, which answers them."""

from typing import Final, Literal

import msgspec

from schemas.value_limits import Address, Identifier, Name, Token, UtcTime

PROPOSE_REMOVAL: Final = "propose-removal"

RemovalGate = Literal[
    "", "stop", "observe", "breaker", "rate", "occupied", "unread", "records", "no-pool"
]
"""What holds a removal. stop: an operator has stopped what is automatic. occupied: work may be on
it. unread: what would show that cannot be read. records: they began, or were restored, after the
machine was made, and prove nothing about it. no-pool: only an operator's command removes it. Empty:
nothing holds it."""


class RemovalProposal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Proposes to remove a machine that no order means, and that seems to serve nothing."""

    pool: Token
    node: Token
    """The name that it carries."""
    provider: str
    provider_id: Identifier
    beside: Identifier = ""
    """The machine of that name that is known to be the node; empty: none is."""
    address: Address = ""
    created_at: UtcTime | None = None
    reason: Name = ""


class RemovalAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Return whether it may be removed."""

    gate: RemovalGate = ""
    """Empty: it may be, within half a minute."""
    reason: str = ""
