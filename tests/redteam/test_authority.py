"""Every subject that a role may publish has a named check of its sender, and an attack on that."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from schemas.permissions import rules
from tests.house.modules import ROOT
from tests.redteam.authority import AUTHORITY, Authority

PERMITTED: Final = [(role, each) for role, rule in rules().items() for each in rule.publish]


def rows_of(role: str, subject: str) -> list[Authority]:
    """Return the rows that are about a subject of a role."""
    return [
        each
        for each in AUTHORITY
        if role in each.roles and re.fullmatch(each.subjects, subject) is not None
    ]


def test_every_permitted_subject_of_a_role_has_its_check() -> None:
    """A permission that is added without a row is found here; none has two."""
    found = {(role, each): len(rows_of(role, each)) for role, each in PERMITTED}
    assert {each: count for each, count in found.items() if count != 1} == {}


@pytest.mark.parametrize("row", AUTHORITY, ids=lambda each: each.subjects[:40])
def test_each_row_is_of_a_permission_that_there_is(row: Authority) -> None:
    """A row whose role has lost its permission goes."""
    used = {role for role, each in PERMITTED if row in rows_of(role, each)}
    assert used == set(row.roles)


@pytest.mark.parametrize(
    "named", sorted({each for row in AUTHORITY for each in (row.check, row.tried)})
)
def test_each_check_and_each_attack_exists(named: str) -> None:
    """One that is renamed is noticed here."""
    file, _, name = named.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(async def|def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE)


SOURCES: Final = {
    file: file.read_text(encoding="utf-8")
    for place in ("schemas", "services", "agent")
    for file in (ROOT / place).rglob("*.py")
}


@pytest.mark.parametrize("check", sorted({row.check for row in AUTHORITY}))
def test_each_check_is_made(check: str) -> None:
    """A check that is declared, and that nothing uses any more, protects nothing."""
    name = check.partition("::")[2]
    assert any(name in loaded(text) for text in SOURCES.values() if name in text)


def loaded(source: str) -> set[str]:
    """Return the names that a module uses, beside those that it defines or imports. Pure."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    return names | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


class Handler(NamedTuple):
    """Says where an order is taken."""

    order: str
    where: str
    asks_who: bool
    """Whether it goes by the user that nats-server has checked, and not by what the order says."""


def handlers(file: Path, source: str) -> Iterator[Handler]:
    """Yield the orders that a module takes, each with whether its method asks who gave it."""
    path = file.relative_to(ROOT)
    names = vars(importlib.import_module(".".join(path.with_suffix("").parts)))
    for part in (each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)):
        methods = {
            each.name: each
            for each in part.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        answered = {
            id(key): methods[value.attr]
            for each in ast.walk(part)
            if isinstance(each, ast.Dict)
            for key, value in zip(each.keys, each.values, strict=True)
            if isinstance(value, ast.Attribute) and value.attr in methods
        }
        for each in (node for node in ast.walk(part) if isinstance(node, ast.Call)):
            if isinstance(each.func, ast.Attribute) and each.func.attr == "order_wildcard":
                order = eval(ast.unparse(each.args[0]), dict(names))
                body = answered.get(id(each), part)
                called = {ast.unparse(c.func) for c in ast.walk(body) if isinstance(c, ast.Call)}
                yield Handler(str(order), str(path), "requester" in called)


def test_every_order_that_a_role_may_give_has_one_handler_which_asks_who_gave_it() -> None:
    """An order's body may name anyone; its subject ends with the name that the server checks."""
    permitted = {
        found[1] for _, each in PERMITTED if (found := re.search(r"\.order\.([^.]+)", each))
    }
    found = [
        each
        for file, text in SOURCES.items()
        if "order_wildcard(" in text and "def order_wildcard" not in text
        for each in handlers(file, text)
    ]
    assert sorted(each.order for each in found) == sorted(permitted)
    assert [each for each in found if not each.asks_who] == []
