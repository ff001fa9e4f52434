"""Plugins are found by name or by class, and their options checked like ours."""

import pytest

from schemas.settings import PluginSettings
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import load_settings

PLUGINS = {
    "unknown plugin": (
        "notifier:\n  type: slrum\n",
        ":2: notifier.type: no navarch.notifiers named 'slrum' (known: ",
    ),
    "plugin option": (
        "notifier:\n  type: webhook\n  webhook:\n    cordon: http://a\n",
        ":4: notifier.webhook.cordon: unknown key; did you mean `cordon_url`?",
    ),
    "plugin option beside": (
        "notifier:\n  type: webhook\n  timeout: x\n",
        ":3: notifier.timeout: 'x' is not a duration",
    ),
    "plugin value": (
        "notifier:\n  type: webhook\n  webhook:\n    cordon_url: a/b\n",
        ":3: notifier.webhook: cordon_url is not a URL: write http://host/path or https://",
    ),
    "module": (
        "notifier:\n  type: nowhere.at_all:Class\n",
        ":2: notifier.type: nowhere.at_all:Class cannot be loaded: No module named 'nowhere'",
    ),
    "class": (
        "notifier:\n  type: services.notifier.workload.noop_notifier:Nope\n",
        ":2: notifier.type: services.notifier.workload.noop_notifier:Nope cannot be loaded: module",
    ),
    "no options": (
        "notifier:\n  type: services.primitives.race:unless\n",
        ":2: notifier.type: services.primitives.race:unless has no `Options` struct",
    ),
}


@pytest.mark.parametrize(("text", "expected"), PLUGINS.values(), ids=PLUGINS.keys())
def test_a_plugins_error_names_the_line_too(tmp_path, text, expected):
    """For any author's plugin, its options are checked like ours."""
    file = tmp_path / "navarch.yaml"
    file.write_text(text)
    settings = load_settings(file, {})
    with pytest.raises(ConfigurationError) as found:
        load_plugin("navarch.notifiers", settings.notifier, file)
    assert str(found.value).startswith(f"{file}{expected}")


def test_a_plugin_may_be_named_by_module_and_class():
    """An owner's class needs no registration."""
    settings = PluginSettings(
        type="services.notifier.workload.webhook_notifier:WebhookNotifier",
        options={"drain_status_url": "http://s/drained"},
    )
    kind, options = load_plugin("navarch.notifiers", settings, None)
    assert (kind, options.drain_status_url) == (WebhookNotifier, "http://s/drained")
