"""An operator's order to accept the identity that a node's agent reports."""

from typing import Annotated, Final

import msgspec

from schemas.value_limits import Name, Token

CLAIM_CHARS_MAX: Final = 64
Claim = Annotated[str, msgspec.Meta(min_length=1, max_length=CLAIM_CHARS_MAX)]


class IdentityAccept(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Accept the identity that an agent reports (`order.identity-accept.<user>`)."""

    pool: Token
    node: Token
    claim: Claim
    """The `identity_claim` of the node: what its agent reports later is not accepted with it."""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""
