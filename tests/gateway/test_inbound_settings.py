"""Settings of answers from outside that could be forged, or do nothing, keep a service from it."""

import pytest

from schemas.settings import Settings
from services.gateway.gateway_start import check as check_gateway
from services.notifier.service import check as check_notifier
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import redacted
from services.settings.settings_file import parse_settings

SECRET = "0123456789abcdef"
SLACK = f"gateway: {{inbound: {{slack_secret: {SECRET}, slack_team: T1}}}}\n"
CHANNEL = "alerts: [{type: slack, token: xoxb-of-a-bot, channel: C1, buttons: true}]\n"


def read(text: str) -> Settings:
    """Read a configuration."""
    return parse_settings("navarch.yaml", text, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{pagerduty_secret: short}", "pagerduty_secret: is shorter than 16 characters"),
        ("{slack_secret: short, slack_team: T1}", "slack_secret: is shorter than 16"),
        (f"{{slack_secret: {SECRET}}}", "`slack_team` is missing"),
        ("{slack_team: T1}", "`slack_secret` is missing"),
        (f"{{slack_secret: {SECRET}, slack_team: T1}}", ""),
        (f"{{pagerduty_secret: {SECRET}}}", ""),
        ("{}", ""),
    ],
)
def test_what_could_be_forged_is_refused(text: str, problem: str) -> None:
    """A short secret can be guessed; without a workspace any member of another could answer."""
    settings = read(f"gateway: {{inbound: {text}}}\n")
    if not problem:
        check_gateway(settings, None)
        return
    with pytest.raises(ConfigurationError, match=problem):
        check_gateway(settings, None)


@pytest.mark.parametrize("name", ["slack", "pagerduty"])
def test_no_authenticator_names_callers_as_a_vendor_does(name: str) -> None:
    """`slack:ada` is a member of the workspace, and never a caller whom another has named."""
    text = (
        f"gateway: {{inbound: {{slack_secret: {SECRET}, slack_team: T1, pagerduty_secret: "
        f"{SECRET}}}}}\nauthenticators:\n  {name}: {{type: oidc, issuer: https://login.example.com,"
        " audience: navarch, grants: [{match: ops, role: admin}]}\n"
    )
    with pytest.raises(ConfigurationError, match=f"authenticators.{name}: is the name of who"):
        check_gateway(read(text), None)


def test_buttons_need_the_route_that_they_call() -> None:
    """A person who presses one believes that something was done."""
    with pytest.raises(ConfigurationError, match=r"buttons: needs gateway\.inbound\.slack_secret"):
        check_notifier(read(CHANNEL), None)
    check_notifier(read(SLACK + CHANNEL), None)


def test_the_secrets_are_known_as_such() -> None:
    """Neither is shown in a log line or an answer."""
    read("gateway: {inbound: {pagerduty_secret: pd-secret-of-tests-31}}\n")
    read("gateway: {inbound: {slack_secret: slack-secret-of-tests-32}}\n")
    text = redacted("pd-secret-of-tests-31 slack-secret-of-tests-32")
    assert "secret-of-tests" not in text
