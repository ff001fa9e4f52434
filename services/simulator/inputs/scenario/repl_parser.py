"""Typed commands become a scenario's events: `inject node-1 xid_error`. Pure.

The same actions, parameters and checks as in a file; only the spelling is shorter.
"""

from collections.abc import Collection
from typing import Any, Final

import yaml

from schemas.duration import Duration
from services.primitives.errors import ConfigurationError
from services.settings.yaml_document import Document
from services.simulator.engine import fault_kinds
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.scenario_file import read_event
from services.simulator.inputs.scenario.scenario_validation import VERBS, event_problems

SHORT: Final[dict[str, f.Action]] = {
    "start": "start_fleet",
    "stop": "stop_fleet",
    "inject": "inject_failure",
    "recover": "recover_failure",
    "command": "issue_command",
    "wait": "wait_for_status",
    "step": "wait",
    "load": "set_load",
}
"""Short command -> action; an action's full name is accepted too."""
SECOND: Final[dict[f.Action, str]] = {
    "inject_failure": "failure_type",
    "recover_failure": "failure_type",
    "issue_command": "command_type",
    "wait_for_status": "expected_status",
    "assert": "expected_status",
    "request": "verb",
}
"""Action -> the parameter given as the word after the target."""
INSIDE: Final[dict[f.Action, str]] = {"issue_command": "command_args", "request": "body"}
"""Action -> the parameter that collects `key=value` pairs."""
TYPED: Final = "(typed)"


class TypedError(Exception):
    """The typed line is not an event; the message says how to write one."""


def event_of(line: str, ids: Collection[str], pools: Collection[str]) -> f.Event:
    """Read a typed line; TypedError if it is not an event."""
    words = line.split()
    action: Any = SHORT.get(words[0], words[0])
    if action not in f.PARAMS:
        raise TypedError(f"{words[0]!r} is not understood; type help")
    positional = [word for word in words[1:] if "=" not in word]
    named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    values = {key: _value(text) for key, text in named.items()}
    target = ""
    if action == "wait":
        values.setdefault("duration", positional[0] if positional else "10s")
    elif action == "log":
        values = {"message": " ".join(words[1:])}
    elif positional:
        target, rest = positional[0], positional[1:]
        if rest and action in SECOND:
            values[SECOND[action]] = rest[0]
    text = f.EventText(action=action, at=Duration(0), target=target, params=_nest(action, values))
    try:
        event = read_event(Document(TYPED, {}), text)
    except ConfigurationError as error:
        raise TypedError(_plain(str(ConfigurationError(error.problem, key=error.key)))) from error
    wrong = [
        _plain(f"{'.'.join(map(str, place))}: {problem}".removeprefix(": "))
        for place, problem in event_problems(event, ids, pools)
    ]
    if wrong:
        raise TypedError("; ".join(wrong))
    return event


def _plain(problem: str) -> str:
    """A problem without the key prefixes that only a file has."""
    for place in ("params.command_args: ", "params.body: ", "params: ", "params.", "target: "):
        problem = problem.removeprefix(place)
    return problem


def _nest(action: f.Action, values: dict[str, Any]) -> dict[str, Any]:
    """Move the arguments of a command or request into its own parameter."""
    inside = INSIDE.get(action)
    if inside is None:
        return values
    own = {"command_type", "verb", "reason"} if action == "issue_command" else {"verb"}
    outer = {key: value for key, value in values.items() if key in own}
    return {**outer, inside: {k: value for k, value in values.items() if k not in own}}


def _value(text: str) -> Any:
    """A number, word or list, as in YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


HELP: Final = f"""\
start                                 start the fleet (again: what was stopped of it)
step 30s                              let time pass; an empty line: ten seconds
inject node-1 xid_error xid_code=48   break something, for good or with duration=1m; types:
                                      {", ".join(sorted(fault_kinds.NODE_FAULTS))}
inject cloud no_capacity market=spot  cloud: {", ".join(sorted(fault_kinds.CLOUD_FAULTS))}
                                      broker, workload or a service: network; a service: crash
recover node-1                        whatever is wrong with it is over
command node-1 drain timeout=1m       {", ".join((*VERBS, "run_diagnostic"))}
request training scale nodes=5        what an operator asks of a pool
load training utilization=95          how a pool is used: pending_jobs=3 queue_depth=12 too
wait node-1 active timeout=1m         let time pass until it is so
nodes, pools, story, why node-1       the current state, why, and what has happened
stop                                  every agent of the fleet falls silent
quit                                  end"""
