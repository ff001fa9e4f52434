"""The mutants of a module: a write left out, a comparison left out, two writes exchanged. Pure.

A place is where a service changes something that outlives its process: the store, a timer, an
acknowledgement. A mutant is the module's text with one such place wrong.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

WRITES: Final = frozenset(
    {
        *("ack", "append", "schedule", "publish", "publish_event", "perform"),
        *("put", "create", "update", "delete", "purge", "put_object"),
        *("write", "change", "save_pool", "change_pool", "change_node", "changed_node"),
    }
)
"""Names of the calls that write."""
WRAPPERS: Final = ("append", "publish", "record_", "remind", "remove", "save", "write")
"""How the names of functions begin that write through these."""
COMPARED: Final = {"update": 3, "write": 2}
"""Call that compares before it writes -> the place of the revision among its arguments."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """A mutant is one module with one wrong place."""

    path: str
    line: int
    kind: str
    text: str
    """The module's text."""

    def __str__(self) -> str:
        """Write `services/saga/coordinator.py:283 write left out`."""
        return f"{self.path}:{self.line} {self.kind}"


def mutants(path: str, source: str, reached: Collection[int]) -> list[Mutant]:
    """Every mutant of a module at the lines that campaigns reach."""
    lines = source.splitlines(keepends=True)
    found = []
    for statements, kind, replacement in _edits(ast.parse(source)):
        first, last = statements[0], statements[-1]
        if first.lineno in reached:
            indent = " " * first.col_offset
            new = [f"{indent}{each}\n" for each in replacement.splitlines()]
            text = "".join([*lines[: first.lineno - 1], *new, *lines[last.end_lineno or 0 :]])
            found.append(Mutant(path, first.lineno, kind, text))
    return sorted(found)


def _edits(tree: ast.AST) -> Iterator[tuple[Sequence[ast.stmt], str, str]]:
    """Statements, what is wrong with them, and the text that takes their place."""
    for node in ast.walk(tree):
        for block in _blocks(node):
            for first, second in zip(block, [*block[1:], None], strict=True):
                calls = _writes(first)
                if isinstance(first, ast.Expr) and calls:
                    yield [first], "write left out", "pass"
                for call in calls:
                    if compared := _uncompared(first, call):
                        yield [first], "comparison left out", compared
                if second is not None and _may_be_exchanged(first, second):
                    exchanged = f"{ast.unparse(second)}\n{ast.unparse(first)}"
                    yield [first, second], "exchanged with the next", exchanged


def _blocks(node: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block


def _is_simple(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr | ast.Assign | ast.Return)


def _writes(statement: ast.stmt) -> list[ast.Call]:
    """The awaited calls of a simple statement that write."""
    if not _is_simple(statement):
        return []
    return [
        node.value
        for node in ast.walk(statement)
        if isinstance(node, ast.Await)
        and isinstance(node.value, ast.Call)
        and _is_write(_name(node.value.func).lstrip("_"))
    ]


def _is_write(name: str) -> bool:
    return name in WRITES or name.startswith(WRAPPERS)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")


def _uncompared(statement: ast.stmt, call: ast.Call) -> str:
    """The statement, whose call writes over whatever is there now; empty: it compares nothing."""
    place = COMPARED.get(_name(call.func))
    if place is None or len(call.args) <= place or not isinstance(call.func, ast.Attribute):
        return ""
    store, text = ast.unparse(call.func.value), ast.unparse(statement)
    given = [ast.unparse(each) for each in call.args]
    named = "".join(f", {each.arg}={ast.unparse(each.value)}" for each in call.keywords)
    if call.func.attr == "update":
        instead = f"{store}.put({', '.join(given[:place])}{named})"
    else:
        given[place] = f"(await {store}.read({given[0]})).revision"
        instead = f"{store}.write({', '.join(given)}{named})"
    return text.replace(ast.unparse(call), instead) if ast.unparse(call) in text else ""


def _may_be_exchanged(first: ast.stmt, second: ast.stmt) -> bool:
    """Whether two neighbours have effects, and the second needs nothing that the first makes."""
    if not (_is_simple(first) and _is_simple(second)) or isinstance(first, ast.Return):
        return False
    if not (_writes(first) or _writes(second)) or not (_awaits(first) and _awaits(second)):
        return False
    made = {each.id for each in ast.walk(first) if _stores(each)}
    used = {each.id for each in ast.walk(second) if isinstance(each, ast.Name)}
    return not (made & used) and not isinstance(second, ast.Return)


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _awaits(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.Await) for each in ast.walk(statement))
