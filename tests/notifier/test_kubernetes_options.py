"""Settings of the Kubernetes notifier that can never work are refused at the start."""

from typing import Any

import pytest

from schemas.settings import NOTIFIER_PLUGINS, PluginSettings
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.workload_notifier import Notifier
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import make_plugin


def make(**options: Any) -> Notifier:
    """The notifier that a configuration names."""
    made = make_plugin(
        NOTIFIER_PLUGINS,
        PluginSettings(type="kubernetes", options=options, path="notifiers.research"),
        None,
        {"kubernetes": KubernetesNotifier},
        clock=SystemClock(),
    )
    assert isinstance(made, Notifier)
    return made


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "runs in no pod, .*set `kubeconfig: FILE`"),
        ({"kubeconfig": "/nowhere/kubeconfig"}, "there is no file /nowhere/kubeconfig"),
        ({"context": "research"}, "`context` is of a kubeconfig"),
        ({"kubeconfig": __file__, "node_name": "{name}"}, "write a template of"),
        ({"kubeconfig": __file__, "timeout": "0s"}, "timeout must be more than 0"),
        ({"kubeconfig": __file__, "batch_pods": "kill"}, "batch_pods"),
        ({"kubeconfig": __file__, "at_deadline": "kill"}, "at_deadline"),
        ({"kubeconfg": __file__}, "kubeconfg"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    """The refusal names the setting and what to write instead."""
    with pytest.raises(ConfigurationError, match=problem):
        make(**options)


async def test_a_notifier_connects_at_its_first_order() -> None:
    """Constructing and closing it needs no cluster."""
    made = make(kubeconfig=__file__)
    assert made.confirms_drains
    await made.close()
