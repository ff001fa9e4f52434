"""The order `work-done`: a workload system says that the work has left a node."""

import msgspec

from schemas.value_limits import OptionalSagaToken, SagaToken, Token


class WorkDone(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The work has left a node that is being drained (`order.work-done.<user>`)."""

    node: Token
    saga: OptionalSagaToken = ""
    """The saga that drains it; empty: whichever does now."""
    by: str = ""


class WorkDoneAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The drain that was waiting for it asks the workload system again, at once."""

    pool: Token
    node: Token
    saga: SagaToken
