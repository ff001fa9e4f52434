"""A notifier from outside behind the boundary of plugins: a class that looks like its own."""

from collections.abc import Mapping
from inspect import iscoroutinefunction
from typing import Any, Final

import msgspec

from schemas.plugin_kinds import NOTIFIER
from services.notifier.workload.workload_notifier import (
    CheckpointingNotifier,
    GpuCordoningNotifier,
    NodeListNotifier,
    NodeStateReporter,
    NodeWorkload,
    Notifier,
    OrderCheckingNotifier,
    OwnerNotifier,
    PartlyAnsweredError,
    RunningWorkReporter,
    SelfCheckingNotifier,
)
from services.primitives.plugin_answers import WrongAnswerError, checked
from services.primitives.plugin_boundary import GuardedPlugin
from services.primitives.plugin_contract import PluginContract
from services.saga.participant import StepFailure

PROTOCOLS: Final = (
    *(Notifier, NodeStateReporter, RunningWorkReporter, CheckpointingNotifier),
    *(GpuCordoningNotifier, SelfCheckingNotifier, NodeListNotifier, OrderCheckingNotifier),
    OwnerNotifier,
)


def _workloads(answer: Any) -> Mapping[str, NodeWorkload | StepFailure]:
    if not isinstance(answer, Mapping):
        raise WrongAnswerError(f"workloads returned {answer!r:.100}, and not a mapping of nodes")
    return {
        msgspec.convert(node, str): each
        if isinstance(each, StepFailure)
        else checked(each, NodeWorkload, "workloads")
        for node, each in answer.items()
    }


CONTRACT: Final = PluginContract(
    kind=NOTIFIER,
    protocols=PROTOCOLS,
    errors=(StepFailure, PartlyAnsweredError),
    passes=True,
    waits=frozenset({"wait_for_change", "wait_for_node_change"}),
    checks={"workloads": _workloads},
)


def guarded_notifier(plugin: GuardedPlugin) -> Any:
    """Return an object with the plugin's methods, each called through the boundary.

    Navarch asks by protocol what a notifier can do, so it has the methods of the plugin and no
    others. Attributes are read once.
    """
    inner = plugin.plugin
    members: dict[str, Any] = {"close": _closing(plugin)}
    for name in {each for kind in PROTOCOLS for each in vars(kind) if not each.startswith("_")}:
        if name == "close" or not hasattr(inner, name):
            continue
        found = getattr(inner, name)
        members[name] = _calling(plugin, name) if iscoroutinefunction(found) else found
    return type(f"Guarded{type(inner).__name__}", (), members)()


def _calling(plugin: GuardedPlugin, name: str) -> Any:
    async def call(_: Any, *arguments: Any) -> Any:
        return await plugin.call(name, *arguments)

    return call


def _closing(plugin: GuardedPlugin) -> Any:
    async def close(_: Any) -> None:
        await plugin.close()

    return close
