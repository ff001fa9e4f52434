"""Windows of the configuration: every error names file, line, key and the remedy."""

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.settings_file import parse_settings
from services.settings.window_validation import diagnostic_problem

TEXT = """
providers: {p: {type: fake}}
pools:
  training:
    provider: p
    instance_type: t
    min_nodes: 0
    max_nodes: 1
    windows:
      - {name: weekend, kind: freeze, start: 0 22 * * 5, duration: 60h, timezone: Europe/Berlin}
      - name: sunday
        kind: service
        start: "0 2 * * 0"
        duration: 2h
"""


def test_windows_are_read() -> None:
    """Kind, cron expression, duration and time zone; UTC where none is named."""
    windows = parse_settings("navarch.yaml", TEXT, {}).pools["training"].windows

    assert [
        ("weekend", "freeze", "0 22 * * 5", 216_000.0, "Europe/Berlin"),
        ("sunday", "service", "0 2 * * 0", 7200.0, "UTC"),
    ] == [(w.name, w.kind, w.start, w.duration, w.timezone) for w in windows]


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ('"0 2 * * 0"', "0 2 * *", "navarch.yaml:13: pools.training.windows.1.start: '0 2 * *' is"),
        ('"0 2 * * 0"', "0 25 * * 0", "navarch.yaml:13: pools.training.windows.1.start: '0 25 * *"),
        (
            "sunday",
            "weekend",
            "navarch.yaml:11: pools.training.windows.1.name: 'weekend' is there",
        ),
        (
            "Europe/Berlin",
            "Mars",
            "navarch.yaml:10: pools.training.windows.0.timezone: 'Mars' is",
        ),
        (
            "Europe/Berlin",
            "../x",
            "navarch.yaml:10: pools.training.windows.0.timezone: '../x' is",
        ),
        ("2h", "5s", "navarch.yaml:14: pools.training.windows.1.duration: a window lasts from 1m"),
        ("60h", "800h", "navarch.yaml:10: pools.training.windows.0.duration: a window lasts from"),
        ("service", "open", "navarch.yaml:12: pools.training.windows.1.kind: "),
    ],
)
def test_a_wrong_window_names_file_line_and_key(right: str, wrong: str, expected: str) -> None:
    """A person goes to the line and knows what to write."""
    with pytest.raises(ConfigurationError) as error:
        parse_settings("navarch.yaml", TEXT.replace(right, wrong), {})

    assert str(error.value).startswith(expected)


@pytest.mark.parametrize(
    ("name", "right"),
    [("", True), ("boot", True), ("dcgm-2", True), ("my-test", True)]
    + [(name, False) for name in ("dcgm", "dcgm-5", "Boot", "a b")],
)
def test_a_diagnostic_is_a_name_the_agent_may_know(name: str, right: bool) -> None:
    """Dcgm needs its level; the error says what may be written."""
    assert right == (diagnostic_problem(name) == "")


def test_a_wrong_diagnostic_names_file_line_and_key() -> None:
    """A person goes to the line and knows what to write."""
    text = TEXT.replace("    windows:", "    admission: {diagnostic: dcgm}\n    windows:")
    with pytest.raises(ConfigurationError) as error:
        parse_settings("navarch.yaml", text, {})

    assert str(error.value).startswith(
        "navarch.yaml:9: pools.training.admission.diagnostic: 'dcgm' is no diagnostic; write boot"
    )
