"""House rules that no linter checks: length, purity, where subjects may be written."""

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Final

import pytest
import typer

from services.cli.app import app
from tests.house.modules import ROOT, modules

CODE: Final = ("schemas", "agent", "services", "benchmarks", "examples")
MODULE_LINES_MAX: Final = 450
FUNCTION_LINES_MAX: Final = 70

PURE: Final = (
    "schemas/*.py",
    "agent/faults/*.py",
    "services/bus/memory/jetstream/*.py",
    "services/bus/nats/file_limits.py",
    "services/bus/protocol/server_protocol.py",
    "services/cli/text/*.py",
    "services/health_monitor/rules/health_state.py",
    "services/health_monitor/rules/node_health.py",
    "services/health_monitor/rules/policy_explanation.py",
    "services/health_monitor/rules/policy_replay.py",
    "services/metrics/fleet/fleet_metrics.py",
    "services/operator_text/*.py",
    "services/pool_manager/planner/*.py",
    "services/pool_manager/planner/*/*.py",
    "services/saga/definitions/*.py",
    "services/provisioner/instances/instance_decisions.py",
    "services/provisioner/provider_client/provider_errors.py",
    "services/saga/saga_state.py",
    "services/settings/yaml_document.py",
    "services/settings/window_validation.py",
    "services/settings/yaml_document.py",
    "services/simulator/engine/network_faults.py",
)
"""Decision code: it gets all data as arguments. Modules that call themselves `Pure.` count too."""
SAYS_PURE: Final = re.compile(r"\bPure\b[.:]")
SEEDED: Final = frozenset(
    {
        ("random", "services/simulator/inputs/fuzz/fuzz_campaign.py"),
        ("random", "services/simulator/inputs/fuzz/campaign_steps.py"),
        ("random", "services/simulator/inputs/fuzz/rare_steps.py"),
        ("random", "services/simulator/inputs/stress/job_demand.py"),
        ("random", "services/simulator/inputs/stress/failure_schedule.py"),
        ("random", "services/simulator/inputs/stress/stress_fleet.py"),
    }
)
"""They draw from a generator that is passed to them."""

IMPURE_MODULES: Final = frozenset(
    {"asyncio", "time", "random", "secrets", "uuid", "logging", "os", "io", "socket", "subprocess"}
    | {"threading", "signal", "shutil", "tempfile", "nats", "httpx", "uvloop"}
)
IMPURE_OURS: Final = (
    *("services.runtime", "services.primitives", "services.bus", "services.settings"),
    *("services.saga.participant", "services.saga.coordinator"),
)
PURE_OURS: Final = frozenset({"services.primitives.errors", "services.bus.port"})
"""Errors and the types of stored messages are values; so is what a pure module declares."""
IMPURE_CALLS: Final = frozenset({"now", "utcnow", "today", "open", "read_text", "write_text"})

NOT_SUBJECTS: Final = frozenset(
    {
        "navarch.yaml",  # the configuration's usual name
    }
)
LIBRARIES: Final = frozenset(
    {"bus", "cli", "fleet_client", "gateway", "operator_text", "primitives", "runtime", "saga"}
    | {"http_client", "mcp_server", "workload_systems"}
    | {"embedding", "settings", "simulator"}
)
"""Folders of services/ that are libraries or programs, not services."""


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def prose(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_every_module_is_short() -> None:
    """No module has more than `MODULE_LINES_MAX` lines."""
    long = {
        path: lines
        for path, _, text in modules(*CODE, "tests")
        if (lines := len(text.splitlines())) > MODULE_LINES_MAX
    }
    assert long == {}


def test_every_function_is_short() -> None:
    """No function has more than `FUNCTION_LINES_MAX` lines."""
    long = {
        f"{path}:{each.name}": length
        for path, tree, _ in modules(*CODE, "tests")
        for each in functions(tree)
        if (length := (each.end_lineno or 0) - each.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_subjects_are_built_in_schemas_only() -> None:
    """No string outside schemas/ begins like a subject."""
    written = [
        f"{path}:{node.lineno}: {node.value!r}"
        for path, tree, _ in modules("agent", "services", "benchmarks")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("navarch.")
        and node.value not in NOT_SUBJECTS
        and id(node) not in prose(tree)
    ]
    assert written == []


def imported(tree: ast.Module) -> Iterator[str]:
    """Full names of the modules that a module imports, at any level."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(name)):
                yield name
            case _:
                pass


def called(tree: ast.Module) -> Iterator[str]:
    """Names of the functions and methods that a module calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name
            case _:
                pass


def pure_modules() -> dict[str, ast.Module]:
    """The modules that must be pure: path from the root -> tree."""
    listed = {str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern)}
    return {
        path: tree
        for path, tree, _ in modules(*CODE)
        if path in listed or SAYS_PURE.search(ast.get_docstring(tree) or "")
    }


def test_pure_modules_have_no_clock_randomness_or_io() -> None:
    """A pure module imports no asyncio, clock, randomness, logging or I/O, and calls no clock."""
    impure = [f"{pattern} names nothing" for pattern in PURE if not list(ROOT.glob(pattern))]
    pure = pure_modules()
    ours = PURE_OURS | {path.removesuffix(".py").replace("/", ".") for path in pure}
    for path, tree in pure.items():
        impure += [
            f"{path} imports {module}"
            for module in imported(tree)
            if (module.split(".")[0] in IMPURE_MODULES and (module, path) not in SEEDED)
            or (module.startswith(IMPURE_OURS) and module not in ours)
        ]
        impure += [f"{path} calls {each}" for each in called(tree) if each in IMPURE_CALLS]
    assert impure == []


def service_folders() -> list[str]:
    """Folders of services/ that run as processes."""
    return sorted(
        path.name
        for path in (ROOT / "services").iterdir()
        if (path / "__init__.py").exists() and path.name not in LIBRARIES
    )


@pytest.mark.parametrize("name", service_folders())
def test_every_service_has_the_same_files(name: str) -> None:
    """Every service starts in `__main__` and is assembled in `service`."""
    folder = ROOT / "services" / name
    missing = {each for each in ("__main__.py", "service.py") if not (folder / each).exists()}
    assert missing == set()


@pytest.mark.parametrize("package", ["agent", "schemas", "services"])
def test_no_other_distribution_has_our_import_names(package: str) -> None:
    """No other installed distribution has a package of the same name."""
    owners = set(importlib.metadata.packages_distributions().get(package, []))
    assert owners == {"navarch"}


def test_configuration_holds_no_python() -> None:
    """config/ contains data only: nothing there is imported or run."""
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "config").rglob("*.py*")]
    assert found == []


def test_every_test_has_a_docstring() -> None:
    """Each test's docstring states the property that it checks."""
    undocumented = [
        f"{path}:{each.name}"
        for path, tree, _ in modules("tests")
        for each in functions(tree)
        if each.name.startswith("test_") and not ast.get_docstring(each)
    ]
    assert undocumented == []


def readme_commands(program: str) -> set[str]:
    """Return the commands of the two pages: the word after `make` or `navarch`."""
    pages = ("README.md", "CONTRIBUTING.md")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    code = re.findall(r"```(?:bash|sh|console)\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    lines = [line for block in code for part in block for line in part.splitlines()]
    starts = re.compile(rf"(?:^|[|;&]\s*|\$ |\bbin/){program} ([a-z][a-z-]*)")
    return {found.group(1) for line in lines if (found := starts.search(line))}


def test_every_make_target_of_the_readme_exists() -> None:
    """Every `make` target that the README names is in the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = readme_commands("make")
    assert {"demo", "test"} <= named
    assert named - targets == set()


def test_every_command_of_the_readme_exists() -> None:
    """Every `navarch` command that the README names exists."""
    group = typer.main.get_command(app)
    commands = set(getattr(group, "commands", {}))
    named = readme_commands("navarch")
    assert {"serve", "status", "list"} <= named
    assert named - commands == set()


def test_no_other_module_names_a_metric() -> None:
    """A metric that is constructed elsewhere would be missing in the table."""
    named = re.compile(r"\b(?:Counter|Gauge|Histogram)(?:MetricFamily)?\(\s*\"navarch_")
    found = [path for path, _, text in modules("services", "agent") if named.search(text)]
    assert found == []
