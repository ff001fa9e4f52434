"""Warnings of pools that are valid and cannot work: a queue without metrics, a foreign agent."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.settings import Settings
from services.settings.offering_warnings import queue_warnings, setup_warnings
from services.settings.setup_validation import templates_of

RELEASES = "https://github.com/NavarchProject/navarch/releases/latest/download"
FETCHED = f"curl -L {RELEASES}/navarch-node-linux-amd64 -o /usr/local/bin/node-agent"
MIRRORED = "curl -sL https://example.com/navarch-node -o /opt/node-agent"
STARTED = "nohup /usr/local/bin/navarch-node -server {{.ControlPlane}} -pool {{.Pool}} &"
LABELLED = 'ray start --address=head --labels="navarch-node={{.NodeID}}"'
KUBE_LABEL = "kubelet --node-labels=example.com/navarch-node={{.NodeID}}"


def settings(pool: dict[str, Any], **others: Any) -> Settings:
    """Return the settings of one pool."""
    whole = {"min_nodes": 0, "max_nodes": 4, **pool}
    return msgspec.convert({"pools": {"web": whole}, **others}, Settings)


@pytest.mark.parametrize(
    "autoscaling",
    [
        {"type": "queue"},
        {"type": "predictive", "fallback": {"type": "queue"}},
        {"type": "composite", "autoscalers": [{"type": "reactive"}, {"type": "queue"}]},
        {
            "type": "scheduled",
            "schedule": [{"start": "0 8 * * *", "autoscaler": {"type": "queue"}}],
        },
    ],
    ids=["alone", "fallback", "composite", "schedule"],
)
def test_a_queue_without_metrics_is_warned_of(autoscaling: dict[str, Any]) -> None:
    """The warning has the line to add; with `metrics` there is none."""
    [warning] = queue_warnings(settings({"autoscaling": autoscaling}))
    assert 'add `metrics: {type: http, url: "https://HOST/load"}` to the pool' in warning
    metrics = {"type": "slurm"}
    assert not list(queue_warnings(settings({"autoscaling": autoscaling, "metrics": metrics})))


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "ray"])
def test_the_line_is_that_of_the_workload_system(kind: str) -> None:
    """The pool's notifier says which source can count its jobs, named or the fleet's own."""
    pool = {"autoscaling": {"type": "queue"}}
    [fleets] = queue_warnings(settings(pool, notifier={"type": kind}))
    named = {**pool, "notifiers": ["research"]}
    [pools] = queue_warnings(settings(named, notifiers={"research": {"type": kind}}))
    assert fleets == pools
    assert f"add `metrics: {{type: {kind}" in pools


@pytest.mark.parametrize("autoscaling", [None, {"type": "reactive"}, {"type": "scheduled"}])
def test_other_autoscalers_need_no_metrics(autoscaling: dict[str, Any] | None) -> None:
    """An autoscaler that looks at the use of GPUs, and a pool without one, get no warning."""
    assert not list(queue_warnings(settings({"autoscaling": autoscaling})))


@pytest.mark.parametrize("command", [FETCHED, MIRRORED, STARTED])
def test_commands_of_the_originals_agent_are_warned_of(command: str) -> None:
    """The warning says how this agent is installed, with the package that is configured."""
    package = "navarch @ https://example.com/navarch-0.1.0-py3-none-any.whl"
    pool = {"setup_commands": ["nvidia-smi -pm 1", command]}
    [warning] = setup_warnings(settings(pool, agent={"package": package}), {})
    assert f"python3 -m pip install '{package}'" in warning
    assert "NAVARCH_NODE={{.NodeID}}" in warning


@pytest.mark.parametrize("command", [LABELLED, KUBE_LABEL, "python3 -m pip install navarch"])
def test_the_label_of_a_node_is_no_agent(command: str) -> None:
    """Commands that set the label `navarch-node`, or install this agent, get no warning."""
    assert not list(setup_warnings(settings({"setup_commands": [command]}), {}))


@pytest.mark.parametrize(("command", "warns"), [(FETCHED, True), (LABELLED, False)])
def test_a_template_of_the_originals_agent_is_warned_of(
    command: str, warns: bool, tmp_path: Path
) -> None:
    """The template is found beside the configuration; one that cannot be read is no warning."""
    (tmp_path / "boot.sh").write_text(f"#!/bin/sh\n{command}\n")
    pool = settings({"user_data": "boot.sh"})
    warnings = list(setup_warnings(pool, templates_of(pool.pools, tmp_path)))
    assert ["its user_data installs the original's agent" in each for each in warnings] == (
        [True] if warns else []
    )
    assert templates_of(settings({"user_data": "missing.sh"}).pools, tmp_path) == {}
