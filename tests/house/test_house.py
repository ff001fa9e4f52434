"""The rules of the house that no linter knows: length, purity, where a subject may be written."""

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Final

import pytest
import typer

from services.cli.app import app
from tests.house.modules import ROOT, modules

CODE: Final = ("schemas", "agent", "services", "benchmarks")
MODULE_LINES_MAX: Final = 450
FUNCTION_LINES_MAX: Final = 70

PURE: Final = (
    "schemas/*.py",
    "agent/faults/*.py",
    "services/bus/memory/jetstream/*.py",
    "services/bus/protocol/server_protocol.py",
    "services/cli/text/*.py",
    "services/health_monitor/rules/health_state.py",
    "services/health_monitor/rules/node_health.py",
    "services/health_monitor/rules/policy_explanation.py",
    "services/health_monitor/rules/policy_replay.py",
    "services/metrics/fleet/fleet_metrics.py",
    "services/notifier/workload/drain_polling.py",
    "services/pool_manager/planner/*.py",
    "services/pool_manager/planner/*/*.py",
    "services/pool_manager/sagas/*.py",
    "services/provisioner/instances/instance_decisions.py",
    "services/provisioner/provider_client/provider_errors.py",
    "services/saga/saga_state.py",
    "services/settings/type_hints.py",
    "services/settings/window_validation.py",
    "services/settings/yaml_document.py",
    "services/simulator/engine/network_faults.py",
)
"""Decision code: what it is given is all it knows. So it is with whatever calls itself `Pure.`"""
SAYS_PURE: Final = re.compile(r"\bPure\b[.:]")
SEEDED: Final = frozenset(
    {
        ("random", "services/simulator/inputs/fuzz/fuzz_campaign.py"),
        ("random", "services/simulator/inputs/stress/job_demand.py"),
        ("random", "services/simulator/inputs/stress/failure_schedule.py"),
        ("random", "services/simulator/inputs/stress/stress_fleet.py"),
    }
)
"""They draw from the generator that they are given."""

IMPURE_MODULES: Final = frozenset(
    {"asyncio", "time", "random", "secrets", "uuid", "logging", "os", "io", "socket", "subprocess"}
    | {"threading", "signal", "shutil", "tempfile", "nats", "httpx", "uvloop"}
)
IMPURE_OURS: Final = (
    *("services.runtime", "services.primitives", "services.bus", "services.settings"),
    *("services.saga.participant", "services.saga.coordinator"),
)
PURE_OURS: Final = frozenset({"services.primitives.errors", "services.bus.port"})
"""Errors and the shapes of stored messages are values; so is what a pure module has."""
IMPURE_CALLS: Final = frozenset({"now", "utcnow", "today", "open", "read_text", "write_text"})

NOT_SUBJECTS: Final = frozenset(
    {
        "navarch.yaml",  # the configuration's usual name
    }
)
"""Entry-point groups need no place here: they are named in schemas/settings.py."""
LIBRARIES: Final = frozenset(
    {"bus", "cli", "primitives", "runtime", "saga", "settings", "simulator"}
)
"""Folders of services/ that are no service: libraries, and the command line."""


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def prose(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings: sentences, not values."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_every_module_is_short_enough_to_read_at_once() -> None:
    """No module has more lines than a reader can hold."""
    long = {
        path: lines
        for path, _, text in modules(*CODE, "tests")
        if (lines := len(text.splitlines())) > MODULE_LINES_MAX
    }
    assert long == {}


def test_every_function_is_short_enough_to_read_at_once() -> None:
    """No function has more lines than a screen."""
    long = {
        f"{path}:{each.name}": length
        for path, tree, _ in modules(*CODE, "tests")
        for each in functions(tree)
        if (length := (each.end_lineno or 0) - each.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_a_subject_is_written_in_schemas_alone() -> None:
    """A string that begins like one of our subjects stands nowhere but in schemas/."""
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
    """Full names of the modules that a module imports, wherever the import stands."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(name)):
                yield name
            case _:
                pass


def called(tree: ast.Module) -> Iterator[str]:
    """Last names of what a module calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name
            case _:
                pass


def pure_modules() -> dict[str, ast.Module]:
    """The modules that are held to it: path from the root -> tree."""
    listed = {str(path.relative_to(ROOT)) for pattern in PURE for path in ROOT.glob(pattern)}
    return {
        path: tree
        for path, tree, _ in modules(*CODE)
        if path in listed or SAYS_PURE.search(ast.get_docstring(tree) or "")
    }


def test_decisions_know_no_clock_no_chance_and_no_outside() -> None:
    """A pure module imports no asyncio, clock, chance, log or I/O, and asks no clock."""
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
    """Folders of services/ that are processes."""
    return sorted(
        path.name
        for path in (ROOT / "services").iterdir()
        if (path / "__init__.py").exists() and path.name not in LIBRARIES
    )


@pytest.mark.parametrize("name", service_folders())
def test_every_service_has_the_same_files(name: str) -> None:
    """Every service starts from `__main__` and is put together in `service`."""
    folder = ROOT / "services" / name
    missing = {each for each in ("__main__.py", "service.py") if not (folder / each).exists()}
    assert missing == set()


@pytest.mark.parametrize("package", ["agent", "schemas", "services"])
def test_our_import_names_are_ours_alone(package: str) -> None:
    """No other installed distribution brings a package of the same name."""
    owners = set(importlib.metadata.packages_distributions().get(package, []))
    assert owners == {"navarch"}


def test_configuration_holds_no_python() -> None:
    """config/ is data: nothing there is imported or run."""
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "config").rglob("*.py*")]
    assert found == []


def test_every_test_says_what_holds() -> None:
    """Each test's docstring states the property that it shows."""
    silent = [
        f"{path}:{each.name}"
        for path, tree, _ in modules("tests")
        for each in functions(tree)
        if each.name.startswith("test_") and not ast.get_docstring(each)
    ]
    assert silent == []


def readme_commands(program: str) -> set[str]:
    """The commands of README.md and CONTRIBUTING.md: the word after `make` or `navarch`."""
    pages = ("README.md", "CONTRIBUTING.md")
    text = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    code = re.findall(r"```(?:bash|sh|console)\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    lines = [line for block in code for part in block for line in part.splitlines()]
    starts = re.compile(rf"(?:^|[|;&]\s*|\$ |\bbin/){program} ([a-z][a-z-]*)")
    return {found.group(1) for line in lines if (found := starts.search(line))}


def test_every_make_target_of_the_readme_exists() -> None:
    """What the README says to make can be made."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    named = readme_commands("make")
    assert {"demo", "test"} <= named
    assert named - targets == set()


def test_every_command_of_the_readme_exists() -> None:
    """What the README says to type is a command of `navarch`."""
    group = typer.main.get_command(app)
    commands = set(getattr(group, "commands", {}))
    named = readme_commands("navarch")
    assert {"serve", "status", "list"} <= named
    assert named - commands == set()
