"""Each mutant that is drawn from a module is a program."""

import ast

from tests.planted.__main__ import ROOT, module_paths
from tests.planted.mutations import mutants

SOURCE = """\
class Store:
    async def save(self, key, value, revision):
        found = self.encode(value)
        await self._bus.update(BUCKET, key, found, revision, ttl_seconds=5)
        await self._bus.publish(subject, found)
        return found

    async def take(self, record, revision):
        new = await self._records.write(record.key, record, revision)
        await self.log(new)
"""

COMPARED_LATE = (
    "a.py:9 comparison left out | new = await self._records.write(record.key, record, "
    "(await self._records.read(record.key)).revision)"
)


def changed(number: int) -> str:
    """The body of a mutant, without what is as before."""
    found = mutants("a.py", SOURCE, range(1, 20))[number]
    before = ast.unparse(ast.parse(SOURCE)).splitlines()
    after = ast.unparse(ast.parse(found.text)).splitlines()
    return f"{found} | " + "; ".join(each.strip() for each in after if each not in before)


def test_writes_are_left_out_not_compared_or_exchanged() -> None:
    """The places are mutated one by one, and what uses the result of a write follows it."""
    assert [changed(number) for number in range(len(mutants("a.py", SOURCE, range(1, 20))))] == [
        "a.py:4 comparison left out | await self._bus.put(BUCKET, key, found, ttl_seconds=5)",
        "a.py:4 exchanged with the next | ",
        "a.py:4 write left out | pass",
        "a.py:5 write left out | pass",
        COMPARED_LATE,
    ]


def test_what_no_campaign_reaches_has_no_mutants() -> None:
    """A place that no campaign reaches could not be found, and is none."""
    assert [each.line for each in mutants("a.py", SOURCE, {5})] == [5]


def test_every_mutant_of_the_services_is_a_program() -> None:
    """Every mutant is a program, and there are enough of them to draw from."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in module_paths()}
    found = [
        mutant
        for path, text in texts.items()
        for mutant in mutants(path, text, range(text.count("\n") + 2))
    ]
    for mutant in found:
        compile(mutant.text, mutant.path, "exec")
        assert mutant.text != texts[mutant.path], str(mutant)
    assert len(found) > 150
