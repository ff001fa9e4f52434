"""The locks with hashes have what pyproject.toml asks for, at the versions of constraints.txt."""

import re
import runpy
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final = PROJECT["optional-dependencies"]
LOCKS: Final = {
    "requirements-lock.txt": (
        *("services", "embedded", "gateway", "mcp", "azure", "gcp", "kubernetes"),
        *("credentials", "conformance"),
    ),
    "requirements-agent-lock.txt": ("credentials",),
}


def name_of(requirement: str) -> str:
    """A package's name as indexes compare it."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pinned(text: str) -> dict[str, str]:
    """Return the versions by name, of lines `name==version`."""
    found = re.findall(r"(?m)^([\w.-]+)(?:\[[\w,-]+])?==([^\s;\\]+)", text)
    return {name_of(name): version for name, version in found}


def test_the_image_installs_what_the_lock_has_by_hash() -> None:
    """Only the packages that are chosen, each with its hashes; one that the lock lacks fails."""
    part = runpy.run_path(str(ROOT / "deploy/wheel/locked_part.py"))["locked_part"]
    lock = (ROOT / "requirements-lock.txt").read_text()

    def chosen(*items: tuple[str, str]) -> dict[str, list[dict[str, dict[str, str]]]]:
        return {"install": [{"metadata": {"name": n, "version": v}} for n, v in items]}

    versions = pinned(lock)
    found = part(lock, chosen(("navarch", "0"), *sorted(versions.items())[:9]))
    assert pinned(found) == dict(sorted(versions.items())[:9])
    assert found.count("--hash=sha256:") >= 9
    for other in (("unheard-of", "1"), ("msgspec", "0.0.1")):
        with pytest.raises(SystemExit, match="the lock lacks"):
            part(lock, chosen(other))
    installs = re.findall(r"pip install ([^\n&]*)", (ROOT / "compose/Dockerfile").read_text())
    safe = ("--require-hashes", "--dry-run", "--no-deps --force-reinstall .")
    assert [each for each in installs if not each.startswith(safe)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_of_these_dependencies(lock: str) -> None:
    """`make lock` was run after the last change of a dependency or of a version."""
    text = (ROOT / lock).read_text()
    locked = pinned(text)
    constraints = pinned((ROOT / "constraints.txt").read_text())
    asked = [*PROJECT["dependencies"], *(each for name in LOCKS[lock] for each in EXTRAS[name])]

    missing = {name_of(each) for each in asked} - {"navarch", *locked}
    assert not missing, f"run make lock: {lock} lacks {missing}"
    other = {name for name in locked.keys() & constraints if locked[name] != constraints[name]}
    assert not other, f"run make lock: {lock} has other versions of {other}"
    entries = re.split(r"(?m)^(?=\w)", text)[1:]
    assert len(entries) == len(locked)
    assert all("--hash=sha256:" in each for each in entries)


def test_the_agents_lock_is_a_part_of_the_other() -> None:
    """A host of the agent has the versions of the services."""
    whole, agent = ((ROOT / each).read_text() for each in LOCKS)

    assert pinned(agent).items() <= pinned(whole).items()
