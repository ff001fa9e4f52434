"""`navarch gateway token create`: the token that is printed is the one that its entry admits."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.gateway.access_tokens import find_principal
from services.settings.settings_file import load_settings
from tests.support import inprocess


async def test_the_printed_entry_admits_the_printed_token(tmp_path: Path) -> None:
    """The entry admits in the configuration as it is printed, for its role, pools and time."""
    options = ("--role", "operator", "--pools", "train*", "--pools", "dev", "--expires", "90d")
    status, out, _ = await inprocess.navarch("gateway", "token", "create", "ada", *options)
    token, _, _, _, *entry = out.splitlines()
    file = tmp_path / "navarch.yaml"
    file.write_text("\n".join(entry))
    tokens, now = load_settings(file, {}).gateway.tokens, datetime.now(UTC)
    found = find_principal(tokens, token, now)

    assert status == 0
    assert token not in "\n".join(entry)
    assert found is not None
    assert ("ada", "operator", ("train*", "dev")) == (found.name, found.role, found.pools)
    assert found.expires is not None
    assert timedelta(days=89) < found.expires - now <= timedelta(days=90)


async def test_no_two_tokens_are_equal() -> None:
    """Each run makes another token; programs get JSON."""
    made = [
        json.loads((await inprocess.navarch("gateway", "token", "create", "a", "-o", "json"))[1])
        for _ in range(2)
    ]
    assert made[0]["token"] != made[1]["token"]
    assert made[0]["entry"] == {"sha256": made[0]["entry"]["sha256"], "role": "viewer"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ada", "--role", "root"), "there is viewer, operator, admin"),
        (("A.B",), "'A.B' is not a valid name"),
        (("ada", "--expires", "soon"), "--expires"),
        (("auth-token",), "choose another"),
    ],
)
async def test_what_no_token_can_have_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    """The refusal says what to write instead."""
    status, out, err = await inprocess.navarch("gateway", "token", "create", *arguments)
    assert status != 0
    assert problem in err
    assert out == ""
