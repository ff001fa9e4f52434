"""Checks a `stress:` section, and the keys beside it, for what no decoder sees.

Unknown references, times that do not fit, keys without a meaning: each is reported with its place
in the file and with what to write instead. A file without problems can be run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from schemas.names import InvalidNameError, pool_name
from services.pool_manager.autoscaling.autoscaler_plugins import check_autoscaling
from services.primitives.errors import ConfigurationError
from services.settings.problem_list import ProblemList
from services.settings.settings_file import settings_of
from services.settings.yaml_document import Document, Path_, convert, path_of
from services.simulator.engine import fault_kinds
from services.simulator.engine.fault_kinds import HardwareFault
from services.simulator.engine.fleet_settings import fleet_settings
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.scenario_validation import Problem, within
from services.simulator.inputs.stress import job_demand
from services.simulator.inputs.stress.failure_schedule import FAILURES_MAX
from services.simulator.inputs.stress.stress_fleet import generate
from services.simulator.inputs.stress.stress_format import (
    NODES_MAX,
    OLDER_WORDS,
    PERCENT,
    XID_MAX,
    FleetSpec,
    OutageSpec,
    StartupSpec,
    StressSpec,
    WorkloadSpec,
    autoscaling_of,
    zones_of,
)

DURATION_SECONDS_MAX: Final = 24 * 3_600.0
SAMPLES_MAX: Final = 20_000
"""Of `metrics_interval` within `duration`."""
RACKS_SHOWN_MAX: Final = 3

POOL_OWN: Final = frozenset(
    {"provider", "instance_type", "min_nodes", "max_nodes", "gpu_count", "labels"}
)
"""Of a pool's configuration, what a stress run decides by itself; with an autoscaler, all of it but
`min_nodes`."""
MOVED: Final = {
    "seed": "stress.seed",
    "duration": "stress.duration",
    "replace_fatal": "stress.chaos.recovery.replace_fatal",
    "pools": "stress.fleet_gen.pool, which is what all its pools have in common",
    "fleet": "stress.fleet_gen",
}
"""Key of a scenario that means nothing beside `stress` -> where the same is said."""
ASSERTIONS: Final = ("node_count", "job_wait", "dollars")
SETTINGS: Final = frozenset({"agent", "budget", "health_policy", "mode", "server"})
"""Of the configuration, what counts in a stress run."""


def read(document: Document, value: Any, path: Path_ = ()) -> StressSpec:
    """Read a `stress:` section at `path`; ConfigurationError lists all its problems."""
    spec: StressSpec = convert(document, value, StressSpec, path)
    if found := errors(document, spec, path):
        raise ConfigurationError("\n".join(map(str, found)))
    return spec


def errors(document: Document, spec: StressSpec, path: Path_) -> list[ConfigurationError]:
    """Return every problem of a section, each with its line."""
    found = [document.error((*path, *place), problem) for place, problem in problems(spec)]
    return [*found, *_pool_errors(document, spec, (*path, "fleet_gen"))]


def _pool_errors(document: Document, spec: StressSpec, path: Path_) -> Iterator[ConfigurationError]:
    """Problems of what all pools have in common: read as the only pool of a configuration."""
    here, pool = (*path, "pool"), spec.fleet_gen.pool
    scales = autoscaling_of(spec.fleet_gen) is not None
    own = POOL_OWN - {"min_nodes"} if scales else POOL_OWN
    for key in sorted(own & pool.keys()):
        problem = "a stress run says this itself, from its templates and `startup`; take it out"
        yield document.error((*here, key), problem)
    for key in ("pattern", "duration", "batch_size", "jitter_percent") if scales else ():
        if (*path, "startup", key) in document.lines:
            text = "means nothing beside an autoscaler, which says when nodes are wanted"
            yield document.error((*path, "startup", key), f"{text}; take it out")
    needed = {"provider": "any", "instance_type": "any", "min_nodes": 0, "max_nodes": NODES_MAX}
    given = needed | {key: value for key, value in pool.items() if key not in own}
    lines = {
        ("pools", "any", *place[len(here) :]): line
        for place, line in document.lines.items()
        if place[: len(here)] == here
    }
    problems = ProblemList()
    try:
        read = settings_of(Document("", fleet_settings({"any": given}, ["any"]), lines), {})
        check_autoscaling(read.pools["any"], "any", None, problems)
    except ConfigurationError as error:
        problems.add(error)
    for each in problems.found:
        _, _, *inside = path_of(each.key) or ("pools", "any", "autoscaling")
        found = document.error((*here, *inside), each.problem)
        # What is wrong with a plugin, or with its options, has no line in this file yet.
        line = found.line if each.file or not each.line else each.line
        yield ConfigurationError(each.problem, file=found.file, line=line, key=found.key)


def beside(scenario: f.Scenario, raw: dict[str, Any]) -> Iterator[Problem]:
    """Keys beside `stress` that would mean nothing there; `raw` is the file as it is."""
    for key, there in MOVED.items():
        if raw.get(key):
            yield (key,), f"means nothing beside `stress`; write it as {there}"
    sections = raw.get("settings")
    for key in sections if isinstance(sections, dict) else ():
        if key in f.SECTIONS and key not in SETTINGS:
            known = ", ".join(sorted(SETTINGS))
            yield ("settings", key), f"means nothing beside `stress`; those that do are {known}"
    for number, event in enumerate(scenario.events):
        if event.action != "log":
            text = f"a stress run fails as `stress.chaos` says; {event.action} cannot be ordered"
            yield ("events", number), f"{text} (log can)"
        elif event.at > scenario.stress.duration:
            yield ("events", number, "at"), "is after the run's end"
    for number, each in enumerate(scenario.assertions):
        yield from within(("assertions", number), _assertion_problems(each, scenario.stress))


def _assertion_problems(each: f.Assertion, spec: StressSpec) -> Iterator[Problem]:
    if each.type not in ASSERTIONS:
        known = ", ".join(ASSERTIONS)
        yield ("type",), f"{each.type} cannot be asserted of a stress run; what can: {known}"
        return
    if each.type == "job_wait" and spec.workload is None:
        yield ("type",), "no jobs come; add `stress.workload`"
    if each.type != "node_count" and each.expected is not None:
        yield ("expected",), "is hardly met to the second or cent; write `at_most`, or `at_least`"
    if each.at is not None:
        yield ("at",), "a stress run is looked at when it is over; take it out"
    if each.target != fault_kinds.ALL:
        text = f"a stress run counts all nodes; write {fault_kinds.ALL!r}, or leave it out"
        yield ("target",), text
    for key in ("status", "health"):
        if getattr(each, key):
            yield (key,), "a stress run counts the nodes in service; take it out"
    if each.expected is None and each.at_least is None and each.at_most is None:
        yield (), "expects nothing; add `at_least` or `at_most`"
    elif not isinstance(each.expected, int | None):
        yield ("expected",), f"{each.expected!r} is no number"


def problems(spec: StressSpec) -> Iterator[Problem]:
    """Yield what is wrong, each with its place in the section."""
    if not 0 < spec.duration <= DURATION_SECONDS_MAX:
        yield ("duration",), "must be more than 0s, and 24h at most"
    if spec.metrics_interval <= 0:
        yield ("metrics_interval",), "must be more than 0s"
    elif spec.duration / spec.metrics_interval > SAMPLES_MAX:
        yield ("metrics_interval",), f"makes more than {SAMPLES_MAX:,} samples; make it longer"
    files = ("report_file", "html_report_file", "log_file")
    for number, key in enumerate(files):
        same = next((e for e in files[:number] if getattr(spec, e) == getattr(spec, key)), "")
        if same and getattr(spec, key):
            yield (key,), f"is where {same} goes, too; name another file"
    wrong = list(_fleet_problems(spec.fleet_gen))
    yield from within(("fleet_gen",), wrong)
    yield from within(("chaos",), _chaos_problems(spec))
    if spec.workload is not None:
        yield from within(("workload",), _workload_problems(spec.workload, float(spec.duration)))
    if not wrong:
        yield from _generated_problems(spec)


def _workload_problems(workload: WorkloadSpec, seconds: float) -> Iterator[Problem]:
    last = -1.0
    for number, each in enumerate(workload.demand):
        if each.at <= last:
            yield ("demand", number, "at"), "must be later than the one before it"
        elif each.at >= seconds:
            yield ("demand", number, "at"), "is after the run's end"
        last = each.at
    if workload.job_mean <= 0:
        yield ("job_mean",), "must be more than 0s"
    if (jobs := job_demand.expected_jobs(workload, seconds)) > job_demand.JOBS_MAX:
        text = f"makes about {jobs:,.0f} jobs; {job_demand.JOBS_MAX:,} are the most"
        yield ("demand",), text


def _generated_problems(spec: StressSpec) -> Iterator[Problem]:
    """Racks are numbered as they fill, and pools get their share: only the fleet has them."""
    least = spec.fleet_gen.pool.get("min_nodes", 0)
    scales = autoscaling_of(spec.fleet_gen) is not None and isinstance(least, int) and least
    outages = enumerate(spec.chaos.scheduled_outages)
    wanted = {number: each.target for number, each in outages if each.scope == "rack"}
    if not scales and not wanted:
        return
    fleet = generate(spec.fleet_gen, str(spec.seed))
    sizes = {pool: len(fleet.of_pool(pool)) for pool in fleet.pools if scales}
    small = next((pool for pool, size in sizes.items() if size < least), None)
    if small is not None:
        text = f"pool {small} has {sizes[small]} of total_nodes; make those more"
        yield ("fleet_gen", "pool", "min_nodes"), text
    racks = [name for scope, name in fleet.groups if scope == "rack"]
    for number, target in wanted.items():
        if target not in racks:
            some = ", ".join(sorted(racks)[:RACKS_SHOWN_MAX])
            text = f"no such rack: there are {len(racks)}, as {some}"
            yield ("chaos", "scheduled_outages", number, "target"), text


def _fleet_problems(fleet: FleetSpec) -> Iterator[Problem]:
    yield from _twice("templates", (each.name for each in fleet.templates))
    for number, template in enumerate(fleet.templates):
        for provider in fleet.providers:
            try:
                pool_name(f"{template.name}-{provider}")
            except InvalidNameError as error:
                yield ("templates", number, "name"), f"with provider {provider!r}: {error}"
    yield from _weights_problems("templates", [each.weight for each in fleet.templates])
    for key, weights in (("providers", fleet.providers), ("regions", fleet.regions)):
        if not sum(weights.values()):
            yield (key,), "must name at least one, with a weight of more than 0"
    for region, zones in fleet.zones.items():
        if region not in fleet.regions:
            yield ("zones", region), f"no such region; there are {', '.join(fleet.regions)}"
        if not zones:
            yield ("zones", region), "must name at least one zone; or leave the region out"
    yield from _zones_problems(fleet)
    yield from within(("startup",), _startup_problems(fleet.startup))


def _zones_problems(fleet: FleetSpec) -> Iterator[Problem]:
    """Only its name identifies a zone."""
    homes: dict[str, str] = {}
    for region in fleet.regions:
        for zone in zones_of(fleet, region):
            if zone in homes:
                where = "there twice" if homes[zone] == region else f"in {homes[zone]}, too"
                yield ("zones", region), f"{zone!r} is {where}; a zone is of one region, once"
            homes[zone] = region


def _startup_problems(startup: StartupSpec) -> Iterator[Problem]:
    low, high, mean = startup.cold_start_min, startup.cold_start_max, startup.cold_start_mean
    if startup.pattern == "instant":
        for key in ("duration", "jitter_percent"):
            if getattr(startup, key):
                text = "means nothing where all come at once; add `pattern: linear`"
                yield (key,), f"{text}, exponential or wave"
    if startup.pattern != "wave" and startup.batch_size is not None:
        yield ("batch_size",), "means nothing without `pattern: wave`; add that"
    if low is not None and high is not None and low > high:
        yield ("cold_start_max",), "is less than cold_start_min"
    if mean is None and startup.cold_start_stddev:
        yield ("cold_start_stddev",), "means nothing without cold_start_mean; add it"
    if mean is None and (low is None) != (high is None):
        key = "cold_start_max" if high is None else "cold_start_min"
        yield (key,), "is missing beside its twin; add it"


def _chaos_problems(spec: StressSpec) -> Iterator[Problem]:
    chaos, fleet = spec.chaos, spec.fleet_gen
    minutes = float(spec.duration) / 60
    if chaos.failure_rate * minutes * fleet.total_nodes / 1_000 > FAILURES_MAX:
        yield ("failure_rate",), f"makes more than {FAILURES_MAX:,} failures in all; lower it"
    for code in chaos.xid_distribution:
        if not _is_xid(code):
            yield ("xid_distribution", code), f"is not an XID code: a number up to {XID_MAX}"
    yield from _weights_problems("xid_distribution", chaos.xid_distribution.values())
    yield from _weights_problems("failure_types", [each.weight for each in chaos.failure_types])
    if chaos.cascading.min_delay > chaos.cascading.max_delay:
        yield ("cascading", "max_delay"), "is less than min_delay"
    yield from _twice("scheduled_outages", (each.name for each in chaos.scheduled_outages))
    for number, outage in enumerate(chaos.scheduled_outages):
        here: Path_ = ("scheduled_outages", number)
        if problem := _target_problem(outage, spec.fleet_gen):
            yield (*here, "target"), problem
        if outage.start_time >= spec.duration:
            yield (*here, "start_time"), "is after the run's end"
        if outage.duration <= 0:
            yield (*here, "duration"), "must be more than 0s"
    yield from _twice("correlated_failures", (each.name for each in chaos.correlated_failures))
    for number, each in enumerate(chaos.correlated_failures):
        if each.trigger not in _TYPES and not _is_xid(each.trigger):
            text = f"{each.trigger!r} is neither an XID code nor one of "
            yield ("correlated_failures", number, "trigger"), text + ", ".join(sorted(_TYPES))


_TYPES: Final = frozenset(HardwareFault.__args__) | OLDER_WORDS.keys()  # type: ignore[attr-defined]


def _twice(key: str, names: Iterable[str]) -> Iterator[Problem]:
    seen: Counter[str] = Counter()
    for number, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            yield (key, number, "name"), f"{name!r} is there twice; rename one"


def _weights_problems(key: str, weights: Collection[float]) -> Iterator[Problem]:
    if weights and not sum(weights):
        yield (key,), "all weights are 0; give one of them more"


def _is_xid(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= XID_MAX


def _target_problem(outage: OutageSpec, fleet: FleetSpec) -> str:
    """Why an outage's target does not exist; empty: it does, or is a rack."""
    if outage.scope == "percentage":
        try:
            number = float(outage.target.removesuffix("%"))
        except ValueError:
            number = -1.0
        fits = 0 < number <= PERCENT
        return "" if fits else f"{outage.target!r} is no percentage: write 10"
    known = {
        "provider": set(fleet.providers),
        "region": set(fleet.regions),
        "zone": {zone for region in fleet.regions for zone in zones_of(fleet, region)},
    }.get(outage.scope)
    if known is None or outage.target in known:
        return ""
    return f"no such {outage.scope}: there are {', '.join(sorted(known))}"
