"""The query `workload-check`, and what the notifier found in a pool's workload system."""

from typing import Final

import msgspec

from schemas.value_limits import Token

WORKLOAD_CHECK: Final = "workload-check"


class WorkloadCheckRequest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Check a pool's workload system (`query.workload-check`)."""

    pool: Token
    node: Token | None = None
    """The node to cordon and uncordon; None: change nothing."""
    by: str = ""


class WorkloadCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was tried."""

    what: str
    passed: bool = True
    detail: str = ""
    remedy: str = ""


class WorkloadCheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was tried, in order; it ends with the first connection that failed."""

    notifier: str
    checks: tuple[WorkloadCheck, ...]
