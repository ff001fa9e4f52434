"""docs/first-cloud.md: its policy has the AWS provider's calls, its configuration holds."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from services.cli.configuration_check import check_file
from services.provisioner.instances.instance_tags import FLEET_TAG
from tests.notifier.test_notifier_pages import blocks

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = "first-cloud.md"
PROVIDERS: Final = ROOT / "services" / "provisioner" / "providers"
IMPLIED: Final = {"ec2:CreateTags", "ssm:GetParameters"}
"""RunInstances needs them: for its tags, and to look up AWS's own image."""
SOURCES: Final = ("aws", "aws_prices", "aws_reports", "aws_terminations")


def actions_called() -> set[str]:
    """The actions of the provider's sources."""
    sources = (PROVIDERS / f"{name}.py" for name in SOURCES)
    calls = re.findall(
        r"\"((?:describe|run|reboot|terminate)_[a-z_]+)\"",
        "".join(each.read_text("utf-8") for each in sources),
    )
    of_ec2 = {"ec2:" + "".join(map(str.capitalize, call.split("_"))) for call in calls}
    return of_ec2 | {"pricing:GetProducts"}


def test_the_policy_permits_what_the_provider_calls_and_nothing_else() -> None:
    """Each action once; ending and rebooting only what has a fleet's tag."""
    policy: dict[str, Any] = json.loads(blocks(PAGE, "json")[0])
    permitted = [action for each in policy["Statement"] for action in each["Action"]]
    assert sorted(permitted) == sorted(actions_called() | IMPLIED)
    [tagged] = [each for each in policy["Statement"] if "Condition" in each]
    assert set(tagged["Action"]) == {"ec2:TerminateInstances", "ec2:RebootInstances"}
    assert tagged["Condition"] == {"Null": {f"aws:ResourceTag/{FLEET_TAG}": "false"}}


def test_the_configuration_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `navarch config validate` reads it."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = tmp_path / "navarch.yaml"
    file.write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    settings = check_file(file, {}).settings
    assert settings.pools["first"].user_data == "auto"
