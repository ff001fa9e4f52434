"""A list of conditions: one that holds on a GPU, and one that cannot be read."""

from schemas.held_conditions import ConditionList, HeldCondition

LISTED = ConditionList(
    boot_id="b-1",
    counter=1,
    held=(
        HeldCondition(name="pcie-width", gpu=3, since=1.0, counter=1, message="8 lanes of 16"),
        HeldCondition(name="nvml", since=2.0, unknown=True, message="a call hangs"),
    ),
)
