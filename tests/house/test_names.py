"""Names: a file and a public class are called something that no other is called."""

import ast
from collections import Counter
from typing import Final

from tests.house.modules import ROOT, modules

PRODUCT: Final = ("agent", "schemas", "services")
SHARED_FILE_NAMES: Final = frozenset({"__init__", "__main__", "service", "settings", "errors"})
NOUNS: Final = frozenset({"tracing", "scoring", "incident_matching", "request_ordering"})
"""Words that end in -ing and are nouns of the field."""


def test_file_names_are_unique() -> None:
    """One name finds one module, except for the few that every service has."""
    names = Counter(path.rpartition("/")[2].removesuffix(".py") for path, _, _ in modules(*PRODUCT))
    assert {name for name, count in names.items() if count > 1} - SHARED_FILE_NAMES == set()


def test_modules_are_named_by_nouns() -> None:
    """No module is named by a verb's -ing form."""
    names = {path.rpartition("/")[2].removesuffix(".py") for path, _, _ in modules(*PRODUCT)}
    assert {name for name in names if name.endswith("ing")} - NOUNS == set()


def test_public_class_names_are_unique() -> None:
    """One name finds one class."""
    names = Counter(
        node.name
        for _, tree, _ in modules(*PRODUCT)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_every_service_has_its_own_layers() -> None:
    """An import-linter contract orders the parts of each service that has several."""
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    without = {
        folder.name
        for folder in (ROOT / "services").iterdir()
        if len(list(folder.glob("*/__init__.py"))) > 1
        and f'"services.{folder.name}.' not in contracts
    }
    assert without == set()
