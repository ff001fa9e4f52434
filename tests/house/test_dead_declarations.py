"""Every function, class, constant, field and method of the product is used."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from schemas.operations import CHANGES
from tests.house.modules import ROOT, modules

PRODUCT: Final = ("agent", "schemas", "services")
USERS: Final = (*PRODUCT, "tests", "benchmarks", "deploy", "docs", "examples")
NAMING_FILES: Final = ("pyproject.toml", "docs/*.md", "config/**/*.yaml", "deploy/**/*.yaml")
"""They name plugins, and options that are read by their names."""
GENERATED: Final = frozenset({"docs/configuration.md", "docs/events.md", "docs/metrics.md"})
OVERRIDES: Final = frozenset(
    {
        # nats-py calls them
        *("_parse_header_lines", "_connect_command", "_connect_to_server", "_process_err"),
        "max_chunk_size",  # the same
        *("capture_signals", "startup"),  # uvicorn
        "next_event",  # h11
        "format_commands",  # typer
        *("_run_once", "_timer_handle_cancelled"),  # asyncio
        *("connection_made", "data_received", "connection_lost"),  # asyncio, of a protocol
        "emit",  # logging
        "pytestmark",
        "health_check_interval",  # accepted in older files, and ignored
        *(each.method for each in CHANGES),  # programs that use the Python client
    }
)
"""Called or read by a library."""
WORD: Final = re.compile(r"\w+")
PLUGIN: Final = re.compile(r"^([\w.]+):(\w+)$")
"""`module:Name`, as plugins are named."""


class Declaration(NamedTuple):
    """One name, and the lines that declare it."""

    path: str
    name: str
    first: int
    last: int
    member: bool
    """Of a class: used wherever an attribute has its name."""


def declarations(path: str, body: list[ast.stmt], *, member: bool) -> Iterator[Declaration]:
    """Yield what a module or a class declares; decorators use what they decorate."""
    for node in body:
        match node:
            case ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[]):
                names = [node.name] if not node.name.startswith("test_") else []
            case ast.ClassDef():
                names = [node.name]
                yield from declarations(path, node.body, member=True)
            case ast.Assign(targets=targets):
                names = [each.id for each in targets if isinstance(each, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                continue
        first, last = node.lineno, node.end_lineno or node.lineno
        yield from (
            Declaration(path, each, first, last, member)
            for each in names
            if not each.startswith("__") and each not in OVERRIDES
        )


class Uses:
    """Where every name is used: as a name in its own module, by import, as an attribute."""

    def __init__(self) -> None:
        """Read every module."""
        self.local: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.imported: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.members: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for path, tree, _ in modules(*USERS):
            for node in ast.walk(tree):
                self._take(path, node)
        self.named = {
            word
            for pattern in NAMING_FILES
            for found in ROOT.glob(pattern)
            if str(found.relative_to(ROOT)) not in GENERATED
            for word in WORD.findall(found.read_text(encoding="utf-8"))
        }

    def _take(self, path: str, node: Any) -> None:
        kind = type(node)
        if kind is ast.Name:
            if isinstance(node.ctx, ast.Load):
                self._name(path, node.lineno, node.id)
        elif kind is ast.Attribute:
            self.members[node.attr].add((path, node.lineno))
        elif kind is ast.keyword:
            self.members[node.arg or ""].add((path, node.lineno))
        elif kind is ast.ImportFrom:
            for each in node.names:
                self.imported[node.module or "", each.name].add(path)
        elif kind is ast.MatchClass:
            for name in node.kwd_attrs:
                self.members[name].add((path, node.lineno))
        elif kind is ast.Constant and isinstance(node.value, str):
            self._string(path, node.lineno, node.value)

    def _string(self, path: str, line: int, text: str) -> None:
        if " " not in text:
            for module, name in PLUGIN.findall(text):
                self.imported[module, name].add(path)
            for name in WORD.findall(text):
                self._name(path, line, name)

    def _name(self, path: str, line: int, name: str) -> None:
        self.local[path, name].add(line)
        self.members[name].add((path, line))

    def of(self, declared: Declaration) -> bool:
        """Return whether anything uses the declared name, beside itself."""
        within = range(declared.first, declared.last + 1)
        if declared.name in self.named:
            return True
        if declared.member:
            return any(
                path != declared.path or line not in within
                for path, line in self.members[declared.name]
            )
        module = declared.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        package, _, last = module.rpartition(".")
        users = {path for path, _ in self.members[declared.name]}
        return (
            bool(self.local[declared.path, declared.name] - set(within))
            or (module, declared.name) in self.imported
            or not users.isdisjoint(self.imported.get((package, last), ()))
        )


def test_everything_that_is_declared_is_used() -> None:
    """Something in the repository refers to every declaration of the product, beside itself."""
    uses = Uses()
    dead = [
        f"{each.path}:{each.first}: {each.name}"
        for path, tree, _ in modules(*PRODUCT)
        for each in declarations(path, tree.body, member=False)
        if not uses.of(each)
    ]
    assert dead == []
