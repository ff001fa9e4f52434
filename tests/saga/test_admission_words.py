"""A new node that is not admitted says why in the words of what failed first."""

import pytest

from schemas.node_records import NodeRecord
from schemas.saga_params import SagaParams
from services.saga.definitions.saga_steps import Unmeetable, admitted
from tests.provisioner.provisioner_parts import launch

DRIVER = "driver: NVML does not start: Driver Not Loaded"


@pytest.mark.parametrize(
    ("checked", "detail", "reason"),
    [
        (False, DRIVER, f"boot check failed: {DRIVER}"),
        (True, "", "0 GPUs where 8 were promised"),
    ],
)
def test_a_driver_that_is_not_loaded_is_not_a_host_without_gpus(
    checked: bool, detail: str, reason: str
) -> None:
    """NVML that does not answer says nothing about how many GPUs there are."""
    params = SagaParams(pool="p", launch=launch(gpu_count=8))
    node = NodeRecord(
        pool="p",
        node="n",
        boot_id="b",
        boot_checked=checked,
        boot_checked_id="b",
        boot_detail=detail,
    )
    found = admitted(params, node)
    assert isinstance(found, Unmeetable)
    assert found.reason == reason
