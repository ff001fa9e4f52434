"""Configurations may use what YAML allows: aliases, merged mappings, keys of other kinds."""

from pathlib import Path

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.settings_file import load_settings, parse_settings


def test_a_device_without_an_end_is_refused():
    """A device's size says nothing, and reading it would not end, so it is refused."""
    with pytest.raises(ConfigurationError, match="larger than 4194304 bytes"):
        load_settings(Path("/dev/zero"), {})


MERGED = """\
providers: {local: {}}
pools:
  a: &common
    provider: local
    instance_type: x
    min_nodes: 0
    max_nodes: 1
    labels: {team: ops}
  b:
    max_nodes: 5
    <<: *common
  c:
    <<: [{max_nodes: 9}, *common]
"""


def test_a_pool_takes_the_keys_of_another_that_it_names():
    """`<<` of YAML, wherever it is; the pool's own keys count, and of several the first."""
    pools = parse_settings("f.yaml", MERGED, {}).pools
    assert {name: each.max_nodes for name, each in pools.items()} == {"a": 1, "b": 5, "c": 9}
    assert {each.labels["team"] for each in pools.values()} == {"ops"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MERGED.replace("min_nodes", "min_node"), "f.yaml:6: pools.c.min_node: unknown key; did"),
        (MERGED.replace("<<: *common", "<<: 3"), "f.yaml:11: pools.b.<<: must be an alias of"),
        (MERGED.replace("[{max", "[3, {max"), "f.yaml:13: pools.c.<<: must be an alias of"),
        (MERGED + "? [a]\n: 1\n", "f.yaml:14: (the whole file): a key must be a text"),
        ("pools: &a\n  b:\n    <<: *a\n", "f.yaml:"),
    ],
)
def test_wrong_aliases_name_their_line(text, expected):
    """An error is where the key is written; an alias of what it is in has an end."""
    with pytest.raises(ConfigurationError) as found:
        parse_settings("f.yaml", text, {})
    assert any(line.startswith(expected) for line in str(found.value).splitlines()), found.value
