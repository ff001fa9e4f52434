"""The tags by which an instance is found again."""

import pytest

from services.provisioner.instances.instance_tags import MARKET_TAG, tags_of, with_tags
from services.provisioner.provider_client.provider import Instance
from tests.provisioner.provisioner_parts import FLEET, request, token_of


def test_what_is_tagged_comes_back() -> None:
    """Tags give an instance's owner, and the pool's labels, which cannot hide it."""
    asked = request(labels={"team": "vision", "navarch-fleet": "another"})
    tags = tags_of(asked)
    read = with_tags(Instance(name="i-1", provider_id="i-1"), tags)
    assert ("web-1", FLEET, "web", token_of(), "vision") == (
        *(read.name, read.fleet, read.pool, read.token),
        read.tags["team"],
    )


@pytest.mark.parametrize(
    ("tags", "market"),
    [(tags_of(request(market="spot")), "spot"), ({MARKET_TAG: "by the hour"}, ""), ({}, "")],
)
def test_the_market_comes_back_unless_the_tag_was_changed(
    tags: dict[str, str], market: str
) -> None:
    """A market that no record may contain is read as unknown."""
    assert market == with_tags(Instance(name="i-1", provider_id="i-1"), tags).market


def test_what_carries_no_tags_is_nobodys() -> None:
    """An instance without tags keeps the provider's name, and has no fleet: not ours to touch."""
    read = with_tags(Instance(name="i-1", provider_id="i-1"), {"team": "vision"})
    assert ("i-1", "", "", "") == (read.name, read.fleet, read.pool, read.token)
