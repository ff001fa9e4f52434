"""Plugins are found by name or by class, and their options checked like ours."""

import pytest

from schemas.settings import PluginSettings
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import load_settings
from services.settings.yaml_document import read_document

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
    """The options of any author's plugin are checked like ours."""
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


def test_an_edited_file_is_read_again(tmp_path):
    """A file's parsed text is kept for all its plugins, and never for another text."""
    file = tmp_path / "navarch.yaml"
    for lines in ("", "\n", "\n\n"):
        file.write_text(f"{lines}notifier:\n  type: slrum\n")
        notifier = load_settings(file, {}).notifier
        for _ in range(2):
            with pytest.raises(ConfigurationError) as found:
                load_plugin("navarch.notifiers", notifier, file)
            assert found.value.line == 2 + len(lines)


def test_a_configuration_of_many_pools_is_parsed_once_for_all_its_plugins(tmp_path, monkeypatch):
    """Each plugin's place in the file is found in the same document."""
    parsed = []

    def counted(name, text):
        parsed.append(name)
        return read_document(name, text)

    monkeypatch.setattr("services.settings.plugin_loader.read_document", counted)
    file = tmp_path / "navarch.yaml"
    alerts = "".join(f"  - {{type: log, name: c{n}}}\n" for n in range(30))
    file.write_text(f"alerts:\n{alerts}")
    for each in load_settings(file, {}).alerts:
        load_plugin("navarch.alert_channels", each, file)
    assert len(parsed) == 1
