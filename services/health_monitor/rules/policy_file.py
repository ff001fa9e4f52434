"""Reads and checks a health policy; every error names file, line, key and the remedy.

A policy that passes can be evaluated against every kind of fault: its conditions are tried here on
one made-up fault of each kind, so that a type error is found when it is written and not when the
first GPU fails. Nothing here decides about nodes.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import cel
import msgspec

from schemas.duration import Duration
from schemas.enums import Action, FaultKind
from schemas.settings import Setting
from services.health_monitor.rules.health_policy import (
    METRICS_MAX,
    STICKY_SECONDS,
    Policy,
    Result,
    Rule,
)
from services.health_monitor.rules.level_spec import LevelSpec, level_of
from services.primitives.errors import ConfigurationError
from services.settings.packaged_files import resource
from services.settings.yaml_document import Document, convert, read_document

POLICY_FILE: Final = "health-policy.yaml"
"""The default, in config/."""
FILE_BYTES_MAX: Final = 1_048_576
RULES_MAX: Final = 1000
COUNT_MAX: Final = 100
WINDOW_SECONDS_MAX: Final = 7 * 86_400.0

FIELDS: Final = (
    *("event_type", "system", "gpu_index", "metrics", "message", "code", "subcode", "source"),
    *("condition", "since"),
)
MACROS: Final = ("all", "exists", "exists_one", "map", "filter")
FUNCTIONS: Final = frozenset(
    {"contains", "startsWith", "endsWith", "matches", "size"}
    | {"int", "uint", "double", "string", "bytes", "timestamp", "duration"}
    | {"has", *MACROS}
)
PLAIN_FUNCTIONS: Final = FUNCTIONS - set(MACROS) | {"in", "event"}
"""What may be before a bracket without being a macro."""
KINDS: Final = get_args(FaultKind)

CONDITION_CHARS_MAX: Final = 2_000
COST_MAX: Final = 10_000_000
"""Characters evaluated for one fault, by all conditions together: some 0.1 s."""
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?://[^\n]*\n\s*)*\(")

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'")
_FIELD = re.compile(r"\bevent\s*\.\s*([A-Za-z_]\w*)")
_INDEX = re.compile(r"\bevent\s*\[\s*[\"'](\w+)[\"']\s*\]")
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_EQUALS = re.compile(r"\bevent\s*\.\s*(\w+)\s*[!=]=\s*[\"']([^\"']*)[\"']")
_IN = re.compile(r"\bevent\s*\.\s*(\w+)\s+in\s*\[([^\]]*)\]")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_WORDS = re.compile(r"[\"']([^\"']*)[\"']")


class Metadata(Setting, frozen=True, kw_only=True):
    """Names and describes a policy."""

    name: str = ""
    description: str = ""


class RuleSpec(Setting, frozen=True, kw_only=True):
    """A rule as it is written."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    description: str = ""
    condition: str | bool
    result: Result
    action: Action | None = None
    fatal: bool | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = 1
    window: Duration | None = None
    apart: Duration | None = None
    per: Literal["gpu", "node"] = "gpu"
    sticky: Duration | None = None
    delay: Duration | None = None
    cancels: tuple[int | str, ...] = ()
    cordon: Literal["gpu", "node"] = "node"
    why: str = ""


class PolicySpec(Setting, frozen=True, kw_only=True):
    """A policy file as it is written."""

    version: str | int
    metadata: Metadata = Metadata()
    levels: tuple[LevelSpec, ...] = ()
    rules: tuple[RuleSpec, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rule is defined, for errors."""

    document: Document
    index: int
    name: str

    def error(self, key: str, problem: str) -> ConfigurationError:
        return self.document.error(("rules", self.index, key), f"rule {self.name!r}: {problem}")


def policy_path(named: str, settings_file: Path | None) -> Path:
    """The policy `named` in the configuration, beside its file where relative; else ours."""
    if not named:
        return resource(POLICY_FILE)
    return (settings_file.parent if settings_file else Path()) / Path(named).expanduser()


def load_policy(path: Path) -> Policy:
    """Load a policy file; raise ConfigurationError for whatever is wrong in it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}; correct `health_policy`", file=str(path), line=1
        ) from error
    return parse_policy(str(path), data)


@lru_cache(maxsize=8)
def parse_policy(file: str, data: bytes) -> Policy:
    """The same, from the file's bytes; compiled once for each content."""
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(
            f"larger than {FILE_BYTES_MAX} bytes; shorten it", file=file, line=1
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"is not UTF-8: {error}; save it as UTF-8", file=file, line=1
        ) from error
    document = read_document(file, text)
    if not isinstance(document.value, dict):
        raise document.error((), "must be a mapping with `version` and `rules`")
    spec: PolicySpec = convert(document, document.value, PolicySpec, ())
    if str(spec.version) not in ("1", "v1", "1.0"):
        raise document.error(("version",), f"{spec.version!r} is not known; write version: 1")
    if not spec.rules:
        raise document.error(("rules",), "has no rule; add at least a last one with condition true")
    if len(spec.rules) > RULES_MAX:
        raise document.error(("rules",), f"more than {RULES_MAX} rules; merge some")
    cost = 0
    for index, rule in enumerate(spec.rules):
        cost = _check_cost(_Place(document, index, rule.name), str(rule.condition), cost)
    rules = tuple(
        _rule(_Place(document, index, rule.name), rule) for index, rule in enumerate(spec.rules)
    )
    _check_order(document, rules)
    return Policy(
        file=file,
        name=spec.metadata.name or Path(file).stem,
        hash=hashlib.sha256(data).hexdigest()[:12],
        rules=rules,
        levels=tuple(level_of(document, index, each) for index, each in enumerate(spec.levels)),
    )


def _rule(place: _Place, spec: RuleSpec) -> Rule:
    condition = str(spec.condition).lower() if isinstance(spec.condition, bool) else spec.condition
    _check_keys(place, spec)
    return Rule(
        name=spec.name,
        description=" ".join(spec.description.split()),
        condition=condition.strip(),
        result=spec.result,
        action=spec.action or ("replace" if spec.result == "unhealthy" else "none"),
        fatal=spec.fatal,
        count=spec.count,
        window_seconds=float(spec.window or 0.0),
        apart_seconds=float(spec.apart or 0.0),
        per=spec.per,
        sticky_seconds=STICKY_SECONDS if spec.sticky is None else float(spec.sticky),
        delay_seconds=float(spec.delay or 0.0),
        cancels=spec.cancels,
        cordon=spec.cordon,
        why=" ".join(spec.why.split()),
        program=_compile(place, condition),
    )


def _check_keys(place: _Place, spec: RuleSpec) -> None:
    """Refuse keys that contradict each other or would have no effect."""
    if spec.count > 1 and not spec.window:
        raise place.error("count", "needs a `window` to count in; add e.g. window: 10m")
    if spec.window is not None and not 0 < spec.window <= WINDOW_SECONDS_MAX:
        raise place.error("window", "must be above 0s and at most 7 days; change it")
    if spec.window and spec.count == 1:
        raise place.error("window", "needs a `count` of 2 or more; add one or remove the window")
    if spec.apart is not None and not spec.window:
        raise place.error("apart", "needs `count` and `window`; add them or remove it")
    if spec.apart and spec.window and spec.apart * (spec.count - 1) > spec.window:
        raise place.error(
            "apart",
            f"{spec.count} faults that far apart do not fit into the window; shorten it or "
            "widen the window",
        )
    _check_result(place, spec)
    if spec.delay is not None:
        _check_delay(place, spec, spec.delay)
    for each in spec.cancels:
        if isinstance(each, str) and each not in KINDS:
            raise place.error("cancels", f"{each!r} is no event type; known: {_list(KINDS)}")


def _check_delay(place: _Place, spec: RuleSpec, delay: float) -> None:
    """Refuse a delay of what is no condition, or that would have no effect."""
    if not 0 < delay <= WINDOW_SECONDS_MAX:
        raise place.error("delay", "must be above 0s and at most 7 days; change it")
    if spec.window:
        raise place.error("delay", "goes with no `count` and `window`; remove one of them")
    if spec.result == "healthy":
        raise place.error("delay", "has no effect on a healthy result; remove it")
    if "condition" not in _FIELD.findall(_STRING.sub('""', str(spec.condition))):
        raise place.error(
            "delay",
            "is for conditions that an agent sees, and other faults do not last; name them with "
            "`event.condition`, or remove it",
        )


def _check_result(place: _Place, spec: RuleSpec) -> None:
    """Refuse keys that have no effect on the result."""
    if spec.cordon == "gpu" and spec.result != "unhealthy":
        raise place.error(
            "cordon",
            f"has no effect on a {spec.result} result, whose node gets work anyway; remove it",
        )
    if spec.cordon == "gpu" and spec.action not in ("reset_gpu", "inspect"):
        raise place.error(
            "cordon", f"needs `action: reset_gpu` or `inspect`, since {spec.action} is of the node"
        )
    if spec.sticky is not None and spec.result != "degraded":
        raise place.error(
            "sticky",
            "only a degraded result wears off (unhealthy lasts until the node is uncordoned or "
            "replaced); remove it",
        )
    if spec.fatal is not None and spec.result != "unhealthy":
        raise place.error("fatal", "only an unhealthy result can be fatal; remove it")
    if spec.result == "healthy" and spec.action not in (None, "none", "restart_app"):
        raise place.error(
            "action", f"a healthy result cannot ask for {spec.action}; write degraded or none"
        )


def _compile(place: _Place, condition: str) -> cel.Program:
    try:
        program = cel.compile(condition)
    except ValueError as error:
        text = str(error).partition("ERROR: ")[2] or str(error)
        found = re.match(r"<input>:(\d+):(\d+): (.*)", text)
        said = (
            f"line {found[1]}, column {found[2]} of it: {found[3]}"
            if found
            else text.splitlines()[0]
        )
        raise place.error("condition", f"not valid CEL: {said}; correct it") from error
    _check_names(place, program, condition)
    _try_out(place, program, condition)
    return program


def _check_cost(place: _Place, condition: str, spent: int) -> int:
    """Refuse a condition whose evaluation could take long; return what the policy costs by then.

    A macro evaluates its body for each element of a list or of the metrics, so macros within macros
    multiply; a sum of texts copies them. What is called by any name but a known function's counts
    as a macro, in texts and comments too, so that nothing can hide one.
    """
    if len(condition) > CONDITION_CHARS_MAX:
        raise place.error(
            "condition", f"is longer than {CONDITION_CHARS_MAX} characters; write several rules"
        )
    elements = max(METRICS_MAX, condition.count(",") + 1)
    macros = sum(name not in PLAIN_FUNCTIONS for name in _CALL.findall(condition))
    spent += len(condition) * (1 + condition.count("+")) * elements**macros
    if spent > COST_MAX:
        raise place.error(
            "condition",
            f"{macros} macros ({', '.join(MACROS)}) over up to {elements} elements could delay "
            "every fault; write rules with fewer macros",
        )
    return spent


def _check_names(place: _Place, program: cel.Program, condition: str) -> None:
    """Refuse names that no event has: such a condition would silently never match."""
    bare = _STRING.sub('""', condition)
    bound = set(_BOUND.findall(bare))
    references = program.references()
    for variable in references["variables"]:
        if variable != "event" and variable not in bound:
            raise place.error("condition", f"no variable {variable!r}; everything is under `event`")
    for function in references["functions"]:
        if _NAME.match(function) and function not in FUNCTIONS:
            raise place.error("condition", f"no function {function!r}; known: {_list(FUNCTIONS)}")
    for name in [*_FIELD.findall(bare), *_INDEX.findall(condition)]:
        if name not in FIELDS:
            raise place.error(
                "condition",
                f"an event has no {name!r} (known: {_list(FIELDS)}); correct it, or write "
                f"event.metrics.{name} for a metric",
            )
    for kind in words_compared("event_type", condition):
        if kind not in KINDS:
            raise place.error("condition", f"{kind!r} is no event type; known: {_list(KINDS)}")


def words_compared(field: str, condition: str) -> list[str]:
    """Return the words with which a condition compares a field of the event: `==`, `!=`, `in`."""
    words = [word for name, word in _EQUALS.findall(condition) if name == field]
    for name, inside in _IN.findall(condition):
        words += _WORDS.findall(inside) if name == field else []
    return words


def _try_out(place: _Place, program: cel.Program, condition: str) -> None:
    """Evaluate on one event of each kind: anything but true, false or a missing metric is wrong."""
    for event in _probes():
        try:
            result = program.execute({"event": event})
        except KeyError:
            continue
        except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
            said = str(error).split(". ")[0]
            raise place.error(
                "condition",
                f"fails for an event of type {event['event_type']}: {said}; correct it "
                "(event.code and event.gpu_index are integers, the other fields are strings)",
            ) from error
        if not isinstance(result, bool):
            raise place.error(
                "condition",
                f"is {result!r} for an event of type {event['event_type']}; it must be true or "
                f"false, so compare it with something: {condition} == …",
            )


def _probes() -> Iterable[dict[str, Any]]:
    for kind in KINDS:
        metrics: dict[str, Any] = {f"{kind}_code": 79} if kind in ("xid", "sxid") else {}
        yield {
            "event_type": kind,
            "system": "DCGM_HEALTH_WATCH_ALL",
            "gpu_index": 0,
            "metrics": metrics,
            "message": "a line",
            "code": 79,
            "subcode": "",
            "source": "kmsg",
            "condition": "",
            "since": 0.0,
        }


def _check_order(document: Document, rules: tuple[Rule, ...]) -> None:
    """First match wins, so what follows a rule that always matches is dead."""
    names: dict[str, int] = {}
    conditions: dict[str, str] = {}
    for index, rule in enumerate(rules):
        place = _Place(document, index, rule.name)
        if rule.name in names:
            raise place.error(
                "name", f"is given twice (first as rule {names[rule.name] + 1}); rename"
            )
        names[rule.name] = index
        always = _constant(rule)
        if always is False:
            raise place.error("condition", "can never match; remove the rule")
        if always and rule.window_seconds == 0 and index < len(rules) - 1:
            after = rules[index + 1].name
            raise document.error(
                ("rules", index + 1, "name"),
                f"rule {after!r}: can never be reached: rule {rule.name!r} before it matches "
                "every event; move it up, or remove it",
            )
        same = " ".join(rule.condition.split())
        if same in conditions:
            raise place.error(
                "condition",
                f"can never be reached: rule {conditions[same]!r} before it has the same "
                "condition; remove one",
            )
        if rule.window_seconds == 0:
            conditions[same] = rule.name
    last = rules[-1]
    if not _constant(last) or last.window_seconds:
        raise _Place(document, len(rules) - 1, last.name).error(
            "condition",
            "the last rule must match everything, so that no fault goes unjudged; add a rule "
            "with `condition: true` after it",
        )


def _constant(rule: Rule) -> bool | None:
    """The condition's value where it depends on nothing."""
    if rule.program.references()["variables"]:
        return None
    return rule.program.execute({}) is True


def _list(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))
