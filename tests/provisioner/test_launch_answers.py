"""Answers to launches of one token from several replicas are compared."""

import pytest

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from services.provisioner.instances import instance_decisions as decisions
from tests.provisioner.test_instance_decisions import record


@pytest.mark.parametrize(
    ("known", "same"),
    [
        (record("running"), True),
        (record("running", provider_id="unknown-1"), True),
        (record("running", token="another"), False),
        (record("running", provider="other"), False),
        (record("running", offering=Offering(provider="aws", instance_type="x", zone="b")), False),
        (record(), False),
        (record("terminating"), False),
        (None, False),
    ],
)
def test_two_answers_to_one_token_are_about_one_instance(
    known: InstanceRecord | None, *, same: bool
) -> None:
    """One of two replicas was answered with a wrong ID: the machine may serve, and is kept."""
    assert decisions.answers_same_request(known, record()) is same
