"""The relays of the floor pass on the messages that the services do, and no other."""

import pytest

from benchmarks.relays import CONSUMERS, RULES, durables, kind_of
from schemas.saga_params import LaunchSpec, SagaParams
from services.saga.definition import Definition
from services.saga.definitions.replace_saga import REPLACE
from services.saga.definitions.scale_up_saga import SCALE_UP

LAUNCH = LaunchSpec(fleet="f", provider="fake", instance_type="t", gpu_count=8)


def relayed(first: str) -> list[str]:
    """Return what the relays store upon a message, one after the other."""
    stored, waiting = [], [first]
    while waiting:
        if rule := RULES.get(waiting.pop()):
            stored += rule.then
            waiting += [each for each in rule.then if each in RULES]
    return stored


@pytest.mark.parametrize(
    ("first", "definition", "node"), [("fault", REPLACE, "n1"), ("request", SCALE_UP, "")]
)
def test_relays_store_the_log_of_a_saga_in_the_order_of_its_steps(
    first: str, definition: Definition, node: str
) -> None:
    """The entries of a relayed chain are those of the saga: each step's start and success, once."""
    params = SagaParams(pool="p", node=node, new_node="n2", launch=LAUNCH)
    expected = ["saga.started"]
    for step in definition.steps(params):
        expected += [f"{step.name}.started", f"{step.name}.succeeded"]
    log = [each for each in relayed(first) if kind_of(each) == "saga"]
    assert log == [*expected, "saga.done"]


def test_each_message_with_a_rule_is_consumed_by_its_role_alone() -> None:
    """Every rule's message is in the filters of one durable, which is of the rule's role."""
    filters = {
        subject.rpartition("*.")[2]: role
        for role in {role for role, _ in CONSUMERS}
        for durable in durables(role)
        for subject in durable.filters
    }
    assert filters == {name: rule.role for name, rule in RULES.items()}
