"""Every subject that a role may publish has a named check of its sender, and an attack on that."""

import re
from typing import Final

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
