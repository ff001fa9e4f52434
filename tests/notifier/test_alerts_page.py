"""The configurations of docs/alerts.md are read, and their channels constructed."""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.duration import decode_hook
from schemas.enums import AlertKind
from services.notifier.alerts.alert_channel import AlertChannel
from services.primitives.clock import SystemClock
from services.settings.settings_file import parse_settings
from services.settings.yaml_document import words_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CHANNELS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "entry-points"
]["navarch.alert_channels"]
POOLS = """providers: {fake: {}}
pools:
  training: {provider: fake, instance_type: t, min_nodes: 1, max_nodes: 1}
"""


def class_of(kind: str) -> Any:
    module, _, name = CHANNELS[kind].partition(":")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("block", BLOCKS)
async def test_the_configurations_of_the_page_work(block: str) -> None:
    """Each option exists, and each channel can be constructed."""
    environment = {name: f"https://{name}.example" for name in re.findall(r"\$\{(\w+)\}", block)}
    for each in parse_settings("navarch.yaml", POOLS + block, environment).alerts:
        kind = class_of(each.type)
        options = msgspec.convert(each.options, kind.Options, dec_hook=decode_hook)
        channel = kind(options=options, clock=SystemClock())
        assert isinstance(channel, AlertChannel)
        assert channel.name == each.type
        await channel.close()


def test_the_page_names_every_channel_and_kind_of_alert() -> None:
    """A new one is added to it."""
    assert {each for each in CHANNELS if f"type: {each}" not in PAGE} == set()
    kinds = set(words_of(AlertKind)) - {"test"}
    assert {each for each in kinds if f"`{each}`" not in PAGE} == set()
