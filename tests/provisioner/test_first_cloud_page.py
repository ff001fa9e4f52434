"""docs/first-cloud.md: its policy has the AWS provider's calls, its configuration holds."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.lease_records import BatchedLaunch
from services.cli.configuration_check import check_file
from services.provisioner.instances.instance_tags import FLEET_TAG
from services.provisioner.providers.aws_launch_requests import own_tags
from tests.notifier.test_notifier_pages import blocks

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = "first-cloud.md"
PROVIDERS: Final = ROOT / "services" / "provisioner" / "providers"
IMPLIED: Final = ("ec2:CreateTags", "ssm:GetParameters")
"""RunInstances needs them: for its tags, and to look up AWS's own image."""
SOURCES: Final = ("aws", "aws_launch_requests", "aws_prices", "aws_reports", "aws_terminations")


def actions_called() -> set[str]:
    """Return the actions that the provider's sources call."""
    sources = (PROVIDERS / f"{name}.py" for name in SOURCES)
    calls = re.findall(
        r"\"((?:create|describe|run|reboot|terminate)_[a-z_]+)\"",
        "".join(each.read_text("utf-8") for each in sources),
    )
    of_ec2 = {"ec2:" + "".join(map(str.capitalize, call.split("_"))) for call in calls}
    return of_ec2 | {"pricing:GetProducts"}


def policy() -> list[dict[str, Any]]:
    """Return the statements of the page's policy."""
    document: dict[str, Any] = json.loads(blocks(PAGE, "json")[0])
    return list(document["Statement"])


def is_met(condition: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a request's values meet a condition, as IAM's reference defines it."""
    for operator, wanted in condition.items():
        for key, each in wanted.items():
            given = values.get(key)
            if operator == "Null":
                met = (given is None) is (each == "true")
            elif operator == "StringEquals":
                met = given == each
            else:
                assert operator == "ForAllValues:StringEquals"
                met = set(given or ()) <= set(each)
            if not met:
                return False
    return True


def is_permitted(action: str, values: Mapping[str, Any]) -> bool:
    """Return whether the page's policy permits an action on an instance."""
    return any(
        action in each["Action"] and is_met(each.get("Condition", {}), values) for each in policy()
    )


def test_the_policy_permits_what_the_provider_calls_and_nothing_else() -> None:
    """Each action once, but for tags: those of a launch, and those that follow it."""
    permitted = [action for each in policy() for action in each["Action"]]
    assert sorted(permitted) == sorted([*actions_called(), *IMPLIED])
    assert {each["Effect"] for each in policy()} == {"Allow"}


OWN: Final = {f"aws:ResourceTag/{FLEET_TAG}": "fleet-1"}
LAUNCH: Final = {"ec2:CreateAction": "RunInstances"}
NAMES: Final = {"aws:TagKeys": list(own_tags(BatchedLaunch(launch="l", node="n", token="t")))}
CLAIM: Final = {"aws:TagKeys": [FLEET_TAG]}


@pytest.mark.parametrize(
    ("action", "values", "is_allowed"),
    [
        ("ec2:TerminateInstances", OWN, True),
        ("ec2:TerminateInstances", {}, False),
        ("ec2:RebootInstances", OWN, True),
        ("ec2:RebootInstances", {}, False),
        ("ec2:CreateTags", LAUNCH | CLAIM, True),
        ("ec2:CreateTags", OWN | NAMES, True),
        # With this it could make any instance of the account its own, and end it.
        ("ec2:CreateTags", CLAIM, False),
        ("ec2:CreateTags", NAMES, False),
        ("ec2:CreateTags", OWN | CLAIM, False),
        ("ec2:CreateTags", OWN | {"aws:TagKeys": [*NAMES["aws:TagKeys"], FLEET_TAG]}, False),
        ("ec2:CreateTags", OWN, False),
    ],
)
def test_the_policy_is_confined_to_instances_of_a_fleet(
    action: str, values: Mapping[str, Any], *, is_allowed: bool
) -> None:
    """An instance that no fleet launched is neither ended nor made a fleet's by its tag."""
    assert is_permitted(action, values) is is_allowed


def test_what_options_need_in_addition_names_one_role_and_one_key() -> None:
    """EC2 alone may get the named role, and a disk alone may get the use of the named key."""
    [page] = [each for each in blocks("providers.md", "json") if "iam:PassRole" in each]
    statements = {each["Sid"]: each for each in json.loads(page)}
    assert all("*" not in each["Resource"] for each in statements.values())
    role, grant = statements["GiveNodesTheirRole"], statements["LetDisksUseTheKey"]
    assert role["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    assert grant["Action"] == ["kms:CreateGrant"]
    assert grant["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}


def test_the_configuration_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`navarch config validate` accepts the page's configuration."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "navarch.yaml"
    file.write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    settings = check_file(file, {}).settings
    assert settings.pools["first"].user_data == "auto"
