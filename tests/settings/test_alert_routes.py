"""Errors in the `alerts:` section are refused with file, line, key and remedy."""

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.settings_file import parse_settings

POOLS = """providers: {fake: {}}
pools:
  training: {provider: fake, instance_type: t, min_nodes: 1, max_nodes: 1}
alerts:
"""


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("- type: log\n  pools: [trainin]", r":6: alerts.0.pools.0: no pool 'trainin' .*training"),
        ("- type: log\n  events: [incidents]", r":6: alerts.0.events.0: .*write one of .*incident"),
        ("- type: log\n  faults: [xid79]", r":6: alerts.0.faults.0: 'xid79' is no fault"),
        ("- type: log\n  faults: [xit-79]", r":6: alerts.0.faults.0: 'xit-79' is no fault"),
        ("- type: log\n  min_severity: high", r":6: alerts.0.min_severity: .*write one of info"),
        ("- type: log\n- type: log", r":6: alerts.1.name: 'log' is there twice; give each"),
        ("- type: log\n  name: a b", r":6: alerts.0.name: 'a b' is no name"),
        ("- type: log\n  hours: {start: 20:00}", r":6: alerts.0.hours.start: .*put it in quotes"),
        ("- type: log\n  hours: {start: '25:00'}", r":6: alerts.0.hours.start: .*no time of day"),
        ("- type: log\n  hours: {timezone: Berlin}", r":6: alerts.0.hours.timezone: .*Europe/B"),
        ("- type: log\n  hours: {end: '08:00'}", r":6: alerts.0.hours.end: is the same"),
        ("- type: log\n  hours: {days: [monday]}", r":6: alerts.0.hours.days.0: .*one of mon"),
        ("- type: log\n  hours: {days: []}", r":6: alerts.0.hours.days: is empty"),
        ("- type: log\n  rate: {alerts: 0}", r":6: alerts.0.rate.alerts: must be 1 or more"),
        ("- type: log\n  rate: {window: 2d}", r":6: alerts.0.rate.window"),
        ("- log", r":5: alerts.0: must be a mapping"),
    ],
)
def test_a_wrong_route_is_refused(entry: str, problem: str) -> None:
    """A wrong route is refused when the service starts and by `navarch config validate`."""
    with pytest.raises(ConfigurationError, match=f"navarch.yaml{problem}"):
        parse_settings("navarch.yaml", POOLS + entry, {})


def test_a_route_is_read_beside_the_options_of_its_channel() -> None:
    """Keys of the route are not options; a pattern may name pools that do not exist yet."""
    entry = "- type: a.b:Pager\n  pools: ['batch-*']\n  faults: [xid-*, silence]\n  token: x"
    (found,) = parse_settings("navarch.yaml", POOLS + entry, {}).alerts
    assert (found.route.name, found.options) == ("Pager", {"token": "x"})
    assert found.route.pools == ("batch-*",)
