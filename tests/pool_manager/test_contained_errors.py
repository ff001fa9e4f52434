"""A contained memory error in a pool that replaces unhealthy nodes: its GPU is reset before."""

import msgspec
import pytest

from schemas.enums import Remediation
from schemas.node_records import NodeRecord, RemediationAttempt
from services.pool_manager.planner.remediator import REPLACE
from tests.pool_manager.test_pool_planner import NOW
from tests.pool_manager.test_remediation import HOUR, attempt, unhealthy

CONTAINED = unhealthy(health_code=94)


@pytest.mark.parametrize(
    ("case", "attempts", "remedy"),
    [
        (CONTAINED, (), "reset-gpu"),
        (CONTAINED, (attempt("reset-gpu", "cancelled", what="xid-94"),), "reset-gpu"),
        (CONTAINED, (attempt("reset-gpu", "failed", what="xid-94"),), "replace"),
        (CONTAINED, (attempt("reset-gpu", what="xid-94"),), "replace"),
        (CONTAINED, (attempt("reset-gpu", ago=25 * HOUR, what="xid-94"),), "reset-gpu"),
        (msgspec.structs.replace(CONTAINED, health="degraded"), (), "replace"),
        (
            msgspec.structs.replace(CONTAINED, health="degraded", faulty_gpus=(3,)),
            (),
            "reset-gpu",
        ),
        (msgspec.structs.replace(CONTAINED, health_code=95), (), "replace"),
        (msgspec.structs.replace(CONTAINED, lost=True), (), "replace"),
    ],
)
def test_a_contained_memory_error_is_no_reason_to_replace_a_node_at_once(
    case: NodeRecord, attempts: tuple[RemediationAttempt, ...], remedy: Remediation
) -> None:
    """A reset remaps the faulty row; where it fails, or the fault returns, the node is replaced."""
    assert REPLACE.choose(case, attempts, NOW).remedy == remedy
