"""Docstrings are sentences that a stranger understands alone."""

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.house.known_names import CODE, foreign_packages, known_names
from tests.house.modules import modules
from tests.house.sentences import first_sentence, offences, unknown_citations

OPENING_CHARACTERS: Final = 60
UNKNOWN: Final = "unknown name".replace(" ", "_")
"""A name that is not written anywhere, not even here."""


def public_docstrings(node: ast.AST, line: int = 1) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of a module, of its public classes, functions and methods."""
    match node:
        case ast.Module(body=body) | ast.ClassDef(body=body):
            inner = [
                each
                for each in body
                if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and not each.name.startswith("_")
            ]
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            inner = []
        case _:
            return
    match body:
        case [ast.Expr(value=ast.Constant(value=str(text), lineno=line)), *_]:
            yield line, text
        case _:
            pass
    for each in inner:
        yield from public_docstrings(each, each.lineno)


def offenders(path: str, tree: ast.Module) -> Iterator[str]:
    """Yield what is refused in a module: file, line, the docstring's opening, and the remedy."""
    names, foreign = known_names(), foreign_packages()
    for line, text in public_docstrings(tree):
        opening = first_sentence(text)
        if len(opening) > OPENING_CHARACTERS:
            opening = opening[:OPENING_CHARACTERS] + "…"
        for reason in (*offences(text), *unknown_citations(text, names, foreign)):
            yield f'{path}:{line}: "{opening}" {reason}'


def test_docstrings_are_sentences_that_can_be_understood_alone() -> None:
    """No public docstring is a fragment or cites an unknown name."""
    found = [each for path, tree, _ in modules(*CODE) for each in offenders(path, tree)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("docstring", "reason"),
    [
        ("It has none.", "opens with `it`"),
        ("The file.", "has fewer than 3 words"),
        ("Of what is stored, the newest.", "opens with `of`"),
        ("Whether the node is ready.", "opens with `whether`"),
        ("When the next hold ends.", "opens with `when`"),
        ("And not before.", "opens with `and`"),
        ("The newest message under a filter.", "has no verb"),
        ("Records of one pool, oldest first.", "has no verb"),
        ("When a node is lost, its saga begins.", None),
        ("Return the newest message under a filter.", None),
        ("Amortise the cost over a batch.", None),
        ("Sections of any shape give settings or an error.", None),
        ("Admits at most ten requests of each caller.", None),
        ("Records are kept for a week.", None),
        ("A clock on which each sleep takes an hour.", None),
        ("`navarch list`: prints the nodes of a pool.", None),
        ("Each one starts with the file.", None),
        ("Nodes leave in the order of their racks. Not at once.", None),
    ],
)
def test_a_fragment_is_refused_and_a_sentence_is_not(docstring: str, reason: str | None) -> None:
    """An opening that needs its context and a missing verb are refused; verbs are seen."""
    found = [each.partition(":")[0] for each in offences(docstring)]
    assert found == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("cited", "refused"),
    [
        ("MODULE_LINES_MAX", False),
        (UNKNOWN, True),
        (f"modules.{UNKNOWN}()", True),
        ("ssl.SSLSocket.getpeercert()", False),
        ("kubectl get nodes --all", False),
        ("{type: webhook}", False),
        ("heartbeat_ttl", False),
    ],
)
def test_a_cited_name_exists(cited: str, *, refused: bool) -> None:
    """Names of the code, of settings and of others' packages are known; commands are not read."""
    text = f"Return what `{cited}` gives."
    assert bool([*unknown_citations(text, known_names(), foreign_packages())]) == refused
