"""Files of the original project: each shape loads as it is, loads with notes, or is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.settings import Settings
from services.cli.configuration_check import check_configuration
from services.primitives.errors import ConfigurationError
from services.settings.dialect import RENAMED, translate
from services.settings.settings_file import Configuration, load_settings, read_configuration
from services.settings.yaml_document import read_document
from tests.settings.original_files import LAMBDA, LOADS, POOL, REFUSED, SCALING, Expected


def read(text: str) -> Configuration:
    return read_configuration(read_document("navarch.yaml", text), {})


def value_at(settings: Settings, path: str) -> Any:
    found: Any = settings
    for part in path.split("."):
        if isinstance(found, dict):
            found = found[part]
        elif isinstance(found, tuple | list):
            found = found[int(part)]
        else:
            found = getattr(found, part)
    return found


@pytest.mark.parametrize(("text", "expected", "notes"), LOADS.values(), ids=LOADS)
def test_a_file_of_the_original_loads(
    text: str, expected: Expected, notes: tuple[str, ...]
) -> None:
    """A file keeps its meaning, with a note about all that moved or has no effect."""
    configuration = read(text)
    assert {path: value_at(configuration.settings, path) for path in expected} == expected
    texts = [note.text for note in configuration.notes]
    assert [each for each in notes if not any(text.startswith(each) for text in texts)] == []
    assert all(note.line > 0 for note in configuration.notes)
    if not notes:
        assert texts == []


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_translated_is_refused(text: str, expected: str) -> None:
    """A key without a translation is refused with its line, and what to write."""
    with pytest.raises(ConfigurationError, match="^" + re.escape(expected)):
        read(text)


LACKING = {
    "several partitions, without providers": r":\d+: providers.gcp: `project` is missing; add it",
    "the notifier and the policy below `server`": r":\d+: health_policy: .* does not exist",
}
"""What the documents leave out, and a service needs."""


@pytest.mark.parametrize("name", LOADS)
def test_a_file_of_the_original_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every service accepts its plugins, unless a part is missing that the documents leave out."""
    monkeypatch.setenv("LAMBDA_API_KEY", "key")
    file = tmp_path / "navarch.yaml"
    file.write_text(LOADS[name][0])
    settings = load_settings(file, {})
    if name in LACKING:
        with pytest.raises(ConfigurationError, match=LACKING[name]):
            check_configuration(settings, file)
    else:
        check_configuration(settings, file)


def test_an_error_in_a_plugin_names_the_line_where_its_option_is_written(tmp_path: Path) -> None:
    """Services check a plugin's options against the file, which has the older spelling."""
    file = tmp_path / "navarch.yaml"
    file.write_text(LAMBDA + POOL + SCALING + "      autoscaler: {type: queue, jobs: 1}\n")
    with pytest.raises(ConfigurationError, match=r":12: pools.web.autoscaling.jobs: unknown key"):
        check_configuration(read(file.read_text()).settings, file)


VALUES = st.recursive(
    st.none() | st.integers(-2, 30) | st.sampled_from(["", "x", "5m", "monday", "round-robin"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *{part for path in RENAMED for part in path},
                    *(
                        "scaling",
                        "schedule",
                        "fallback",
                        "autoscalers",
                        "days",
                        "start",
                        "end",
                        "zone",
                    ),
                    *("providers", "name", "weight", "strategy", "type", "agent", "server", "cost"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["server", "global", "pools", "providers", "defaults", "notifier"]), VALUES
    )
)
@example({"global": {"ssh_connect_timeout": 0}, "defaults": []})
def test_translation_is_total_and_idempotent(value: dict[str, Any]) -> None:
    """Any file can be translated, and a translated file has nothing left to translate."""
    document = read_document("a.yaml", "{}")
    document.value = value
    once = translate(document)
    if not once.problems:
        twice = translate(once.document)
        assert (twice.document.value, twice.notes) == (once.document.value, ())
