"""Reads a scenario file; all problems are reported at once, with file, line and key.

References to nodes, pools, actions and requests are checked against the file itself, so that a
scenario without problems can be run.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from schemas.duration import Duration
from schemas.launch_offers import Offering
from schemas.names import InvalidNameError, token
from schemas.operations import REQUESTS
from schemas.settings import Settings
from services.pool_manager.autoscaling.autoscaler_plugins import check_autoscaling
from services.primitives.errors import ConfigurationError, ConfigurationErrors
from services.settings.problem_list import ProblemList
from services.settings.settings_file import settings_of
from services.settings.yaml_document import Document, Path_, convert, path_of, read_document
from services.simulator.engine import fault_kinds
from services.simulator.engine.fleet_settings import FAST_HEARTBEATS, fleet_settings
from services.simulator.inputs.scenario import original_dialect
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.scenario_pools import (
    named_providers,
    offerings_of,
    own_pools,
    pool_text,
)
from services.simulator.inputs.scenario.scenario_validation import KnownNames, problems
from services.simulator.inputs.stress import stress_validation as stress
from services.simulator.inputs.stress.stress_format import StressSpec

FILE_BYTES_MAX: Final = 4 * 1_048_576
KEYS: Final = (
    *("name", "description", "seed", "duration", "replace_fatal", "power_control", "compat"),
    *("fleet", "pools", "settings", "events", "assertions", "stress"),
)


class ScenarioError(ConfigurationError):
    """A file is no scenario; `problems` are all that is wrong with it, ordered by line."""

    def __init__(self, found: list[str]) -> None:
        super().__init__("\n".join(found))
        self.problems = found


def read_file(path: Path, compat: str = "") -> f.Scenario:
    """Read a file; ScenarioError with everything that is wrong with it.

    `compat`: instead of the file's own.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ScenarioError([f"{path}: larger than {FILE_BYTES_MAX} bytes"])
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ScenarioError([f"{path}: is not UTF-8: {error}"]) from error
    return read_text(str(path), text, compat)


def read_text(file: str, text: str, compat: str = "") -> f.Scenario:
    """Read a scenario from text; errors and relative paths use the name `file`."""
    try:
        document = read_document(file, text)
    except ConfigurationError as error:
        raise ScenarioError([str(error)]) from error
    return _Reading(document, compat).scenario()


class _Reading:
    """One file as it is read: its sections, and its problems."""

    def __init__(self, document: Document, compat: str) -> None:
        self._document = document
        self._compat = compat
        self._wrong: list[ConfigurationError] = []
        self._numbers: dict[str, list[int]] = {}
        """Section -> numbers of its items that could be read."""
        self._known: frozenset[str] = frozenset()
        """Every pool that the file names, readable or not."""
        self._notes: tuple[str, ...] = ()

    def scenario(self) -> f.Scenario:
        """Read everything; ScenarioError if there is a problem."""
        raw = self._document.value
        if not isinstance(raw, dict):
            text = "must be a mapping: name, fleet, events …"
            raise ScenarioError([str(self._document.error((), text))])
        for key in raw:
            if key not in KEYS:
                self._report((key,), f"unknown key; known: {', '.join(KEYS)}")
        if self._compat:
            raw["compat"] = self._compat
        if is_original := bool(original_dialect.sign_of(raw)):
            self._notes = tuple(original_dialect.translate(raw))
        if raw.get("compat") == original_dialect.COMPAT:
            original_dialect.without_limits(raw)
        self._fold_pools(raw)
        fleet = tuple(self._fleet(raw.get("fleet")))
        configuration, own = self._configuration(raw, fleet)
        events = tuple(self._events(raw.get("events")))
        assertions = tuple(self._assertions(raw.get("assertions")))
        head = {key: raw[key] for key in _Head.__struct_fields__ if key in raw}
        found = self._try(convert, self._document, head, _Head, ())
        if found is None:
            self._raise()
        scenario = f.Scenario(
            **{name: getattr(found, name) for name in _Head.__struct_fields__},
            file=self._document.file,
            fleet=fleet,
            own_pools=own,
            configuration=configuration,
            events=events,
            assertions=assertions,
            stress=self._stress(raw.get("stress")),
            is_original=is_original,
            notes=self._notes,
        )
        if raw.get("stress") is not None and scenario.stress is None:
            self._raise()  # the keys beside it cannot be checked
        self._refer(scenario, raw)
        self._raise()
        return scenario

    def _refer(self, scenario: f.Scenario, raw: dict[str, Any]) -> None:
        """Check references; unreadable items may be referred to."""
        fleet, events = raw.get("fleet") or [], raw.get("events") or []
        if not (
            isinstance(fleet, list) and isinstance(events, list) and self._has_pool_mappings(raw)
        ):
            return  # every reference would be reported
        whole = len(scenario.events) == len(events)
        named = [each.get("id") for each in fleet if isinstance(each, dict)]
        ids = {each for each in named if isinstance(each, str)}
        known = KnownNames(
            ids=ids, pools=self._known, started=not whole, offered=self._offerings(scenario)
        )
        beside = scenario.stress is not None
        found = stress.beside(scenario, raw) if beside else problems(scenario, known)
        for path, text in found:
            if len(path) > 1 and isinstance(path[1], int):
                path = (path[0], self._numbers[str(path[0])][path[1]], *path[2:])  # noqa: PLW2901
            self._report(path, text)

    def _offerings(self, scenario: f.Scenario) -> tuple[Offering, ...]:
        try:
            return offerings_of(scenario.configuration, scenario.fleet)
        except ConfigurationError as error:
            key, _, problem = (str(error).partition(": ")[2]).partition(": ")
            self._report(("settings", *key.split(".")), problem)
            return ()

    @staticmethod
    def _has_pool_mappings(raw: dict[str, Any]) -> bool:
        """Whether the pools are a mapping of mappings."""
        pools = raw.get("pools") or {}
        return isinstance(pools, dict) and all(isinstance(each, dict) for each in pools.values())

    def _fold_pools(self, raw: dict[str, Any]) -> None:
        """Turn a list of pools with `name` into a mapping."""
        listed = raw.get("pools")
        if not isinstance(listed, list):
            return
        raw["pools"] = pools = {}
        places: dict[int, str] = {}
        for number, each in enumerate(listed):
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str):
                self._report(("pools", number), "a pool in a list needs a `name`; add it")
            elif name in pools:
                self._report(("pools", number), f"pool {name!r} is there twice; rename one")
            else:
                places[number] = name
                pools[name] = {key: value for key, value in each.items() if key != "name"}
        for path, line in list(self._document.lines.items()):
            if len(path) > 1 and path[0] == "pools" and isinstance(path[1], int):
                self._document.lines[("pools", places.get(path[1], path[1]), *path[2:])] = line

    def _stress(self, raw: Any) -> Any:
        if raw is None:
            return None
        spec = self._try(convert, self._document, raw, StressSpec, ("stress",))
        if spec is not None:
            self._wrong += stress.errors(self._document, spec, ("stress",))
        return spec

    # --- parts ------------------------------------------------------------------------------------

    def _fleet(self, raw: Any) -> Iterator[f.FleetNode]:
        seen: dict[str, int] = {}
        for number, node in self._items("fleet", raw, f.FleetNode, f.FLEET_MAX):
            path: Path_ = ("fleet", number, "id")
            try:
                token(node.id, "node")
            except InvalidNameError as error:
                self._report(path, str(error))
            if node.id in (fault_kinds.ALL, *fault_kinds.FAULTS_OF):
                self._report(path, f"{node.id!r} means something else; rename")
            if node.id in seen:
                first = seen[node.id] + 1
                text = f"{node.id!r} is there twice (it is node {first} of the fleet); rename one"
                self._report(path, text)
            seen[node.id] = number
            yield node

    def _events(self, raw: Any) -> Iterator[f.Event]:
        at = Duration(0)
        for number, text in self._items("events", raw, f.EventText, f.EVENTS_MAX):
            at = at if text.at is None else text.at
            event = msgspec.structs.replace(text, at=at)
            found = self._try(read_event, self._document, event, ("events", number))
            if found is None:
                self._numbers["events"].remove(number)
            else:
                yield found

    def _assertions(self, raw: Any) -> Iterator[f.Assertion]:
        for _, each in self._items("assertions", raw, f.Assertion, f.EVENTS_MAX):
            written = each.expected
            if each.type in f.COUNTS and isinstance(written, str) and written.isdecimal():
                # Older files have the number in quotes.
                yield msgspec.structs.replace(each, expected=int(written))
            else:
                yield each

    def _items(self, key: str, raw: Any, kind: type[Any], most: int) -> Iterator[tuple[int, Any]]:
        if raw is None:
            return
        if not isinstance(raw, list) or len(raw) > most:
            self._report((key,), f"must be a list (`- …`) of at most {most:,}")
            return
        for number, each in enumerate(raw):
            path: Path_ = (key, number)
            made = self._try(convert, self._document, each, kind, path)
            if made is not None:
                self._numbers.setdefault(key, []).append(number)
                yield number, made

    # --- the configuration of the services --------------------------------------------------------

    def _configuration(
        self, raw: dict[str, Any], fleet: tuple[f.FleetNode, ...]
    ) -> tuple[Settings, tuple[str, ...]]:
        """The services' settings, and the names of the scenario's own pools."""
        sections = self._mapping(raw, "settings")
        for key in sections:
            if key not in f.SECTIONS:
                known = ", ".join(sorted(f.SECTIONS))
                text = f"is not a section that a scenario can set; those are {known}"
                self._report(("settings", key), text)
        pools = {
            name: pool_text(spec) if isinstance(spec, dict) else spec
            for name, spec in self._mapping(raw, "pools").items()
        }
        providers = {fault_kinds.CLOUD, *(node.provider for node in fleet)}
        for spec in pools.values():
            providers.update(named_providers(spec))
        settings = {
            **({"agent": FAST_HEARTBEATS} if raw.get("stress") is None else {}),
            **{key: value for key, value in sections.items() if key in f.SECTIONS},
        }
        own = own_pools(fleet, replace=raw.get("replace_fatal") is True)
        for name in set(own) & set(pools):
            text = f"is what the nodes' own pool is called that name no `pool`; rename {name!r}"
            self._report(("pools", name), text)
        self._known = frozenset((*own, *pools))
        good = {
            name: spec
            for name, spec in pools.items()
            if self._try(self._pool, name, fleet_settings({name: spec}, providers, **settings))
        }
        read = self._try(self._settings, fleet_settings({**own, **good}, providers, **settings))
        return read or Settings(), tuple(own)

    def _pool(self, name: str, value: dict[str, Any]) -> Settings:
        """One pool's configuration, its plugins included."""
        settings = self._settings(value)
        problems = ProblemList()
        check_autoscaling(settings.pools[name], name, None, problems)
        for each in problems.found:
            self._report(path_of(each.key), each.problem)
        return settings

    def _settings(self, value: dict[str, Any]) -> Settings:
        lines = {
            path[1:] if path[0] == "settings" else path: line
            for path, line in self._document.lines.items()
            if path[:1] in (("pools",), ("settings",))
        }
        document = Document(self._document.file, value, lines)
        try:
            return settings_of(document, {})
        except ConfigurationError as error:
            raise ConfigurationErrors([_without_value(each) for each in error.errors]) from error

    def _mapping(self, raw: dict[str, Any], key: str) -> dict[str, Any]:
        value = raw.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._report((key,), "must be a mapping of names")
            return {}
        return value

    # --- errors -----------------------------------------------------------------------------------

    def _try(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return work(*given)
        except ConfigurationError as error:
            self._wrong.extend(error.errors)
            return None

    def _report(self, path: Path_, text: str) -> None:
        self._wrong.append(self._document.error(path, text))

    def _raise(self) -> None:
        if self._wrong:
            raise ScenarioError(sorted(dict.fromkeys(map(str, self._wrong)), key=_line))


def _without_value(error: ConfigurationError) -> ConfigurationError:
    """A scenario means the same in every environment, so a variable has no value in it."""
    variable, unset, _ = error.problem.partition(" is not set; export ")
    if not unset:
        return error
    return ConfigurationError(
        f"{variable} has no value in a scenario; write the value",
        file=error.file,
        line=error.line,
        key=error.key,
    )


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str = ""
    seed: int = 1
    duration: Duration | None = None
    replace_fatal: bool = False
    power_control: bool = False
    compat: Literal["", "original", "navarch"] = ""


def read_event(document: Document, text: f.EventText, path: Path_ = ()) -> f.Event:
    """Read an event's parameters by its action."""
    params = {f.PARAM_ALIASES.get(key, key): value for key, value in text.params.items()}
    failure = params.get("failure_type")
    if isinstance(failure, str):
        params["failure_type"] = f.FAILURE_ALIASES.get(failure, failure)
    read = convert(document, params, f.PARAMS[text.action], (*path, "params"))
    _check_params(document, text, params, path)
    if text.action == "request" and read.verb not in REQUESTS:
        known = ", ".join(REQUESTS)
        raise document.error((*path, "params", "verb"), f"no such request; known: {known}")
    at = text.at if text.at is not None else Duration(0)
    return f.Event(at=at, action=text.action, target=text.target, params=read)


def _check_params(
    document: Document, text: f.EventText, params: dict[str, Any], path: Path_
) -> None:
    """Refuse parameters without effect."""
    action = text.action
    if action == "assert" and "timeout" in params:
        problem = "an assert looks once; write `action: wait_for_status`, or take it out"
        raise document.error((*path, "params", "timeout"), problem)
    if action != "inject_failure":
        return
    for key, failures in f.PARAM_OF.items():
        if key in params and params["failure_type"] not in failures:
            problem = f"says nothing about {params['failure_type']}, but about "
            raise document.error((*path, "params", key), problem + ", ".join(sorted(failures)))
    of_cloud = (*f.PLACE_KEYS, "count") if params["failure_type"] == "preemption" else f.PLACE_KEYS
    for key in of_cloud:
        if key in params and text.target != fault_kinds.CLOUD:
            problem = (
                f"says nothing about {text.target or 'no target'}, but about {fault_kinds.CLOUD!r}"
            )
            raise document.error((*path, "params", key), problem)


def _line(problem: str) -> tuple[int, str]:
    """Sort by the line that a problem names."""
    for part in problem.split(":"):
        if part.isdecimal():
            return int(part), problem
    return 0, problem
