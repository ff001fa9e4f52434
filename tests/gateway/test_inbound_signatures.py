"""Signatures and times of PagerDuty and Slack: what is signed, and that nothing else passes."""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.inbound.signatures import (
    SIGNATURES_MAX,
    is_fresh,
    is_of_pagerduty,
    is_of_slack,
    slack_time,
)

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
SECRET = "a-secret-of-a-subscription"
BODY = b'{"event": {"id": "1"}}'
DIGEST = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()


def slack_digest(timestamp: str, body: bytes = BODY, secret: str = SECRET) -> str:
    """Sign as Slack documents it."""
    signed = f"v0:{timestamp}:".encode() + body
    return f"v0={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def test_slacks_own_example() -> None:
    """Slack's documentation has a secret, a body and their signature."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner"
        b"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    assert is_of_slack(secret, signature, "1531420618", body)
    assert not is_of_slack(secret, signature, "1531420619", body)


@pytest.mark.parametrize(
    ("header", "passes"),
    [
        (f"v1={DIGEST}", True),
        (f"v1={'0' * 64},v1={DIGEST}", True),
        (f"v1={DIGEST}, v1={'0' * 64}", True),
        ("", False),
        ("v1=", False),
        (DIGEST, False),
        (f"v0={DIGEST}", False),
        (f"V1={DIGEST}", False),
        (f"v1={DIGEST.upper()}", False),
        (f"v1={DIGEST[:-1]}", False),
        (f"v1={DIGEST}0", False),
        (f"v1={'0' * 64}", False),
        ("v1=\u00e4\ud800", False),
        (",".join([f"v1={'0' * 64}"] * SIGNATURES_MAX + [f"v1={DIGEST}"]), False),
        (",".join([f"v1={'0' * 64}"] * (SIGNATURES_MAX - 1) + [f"v1={DIGEST}"]), True),
    ],
)
def test_only_a_signature_of_this_version_passes(header: str, *, passes: bool) -> None:
    """One of the first eight, written as PagerDuty writes it."""
    assert is_of_pagerduty(SECRET, header, BODY) is passes


@given(body=st.binary(max_size=300), altered=st.binary(max_size=300), secret=st.text(min_size=1))
def test_no_altered_body_or_other_secret_passes(body: bytes, altered: bytes, secret: str) -> None:
    """The signed body passes, and nothing else does under that signature."""
    secret = secret.encode("utf-8", "replace").decode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    assert is_of_pagerduty(secret, f"v1={signature}", body)
    assert is_of_pagerduty(secret, f"v1={signature}", altered) is (altered == body)
    assert not is_of_pagerduty(f"{secret}x", f"v1={signature}", body)
    signed = slack_digest("1763888400", body, secret)
    assert is_of_slack(secret, signed, "1763888400", body)
    assert is_of_slack(secret, signed, "1763888400", altered) is (altered == body)
    assert not is_of_slack(secret, signed, "1763888401", body)
    assert not is_of_slack(f"{secret}x", signed, "1763888400", body)


@given(position=st.integers(0, len(BODY) * 8 - 1))
def test_no_flipped_bit_passes(position: int) -> None:
    """An altered body is refused, wherever it is altered."""
    altered = bytearray(BODY)
    altered[position // 8] ^= 1 << position % 8
    assert not is_of_pagerduty(SECRET, f"v1={DIGEST}", bytes(altered))
    assert not is_of_slack(SECRET, slack_digest("1"), "1", bytes(altered))


@pytest.mark.parametrize(
    ("seconds", "fresh"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)]
)
def test_the_window_is_five_minutes(seconds: int, *, fresh: bool) -> None:
    """A request of the future is refused, too: it could be sent again for longer."""
    assert is_fresh(NOW - timedelta(seconds=seconds), NOW) is fresh


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", " 1", "1e9", "\u0661", "\u00b2", "9" * 13, "999999999999"]
)
def test_a_text_that_is_no_time_is_none(text: str) -> None:
    """Digits that are not ASCII, and years that there are not, are refused."""
    assert slack_time(text) is None
    assert slack_time("1763888400") == datetime.fromtimestamp(1763888400, UTC)
