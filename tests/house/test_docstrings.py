"""Docstrings are sentences that a stranger understands alone; old modules are excused, for now.

`old_docstrings.txt` lists the modules that had offenders when the rule came. It only shrinks: a
module leaves it when it has none any more, or when one commit changes over twenty of its lines.

The commits that are looked at are those that descend from the one that introduced the list, the
newest hundred, without merges: a merge changes nothing of its own, and what was written before the
list, or beside it on another branch, could not know of it. The work tree is compared with HEAD, so
that the rule fails before the commit does. In a shallow clone the oldest commit that is there
counts as the introduction, which leaves the work tree to be checked.
"""

import ast
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.house.known_names import CODE, foreign_packages, known_names
from tests.house.modules import ROOT, modules
from tests.house.sentences import first_sentence, offences, unknown_citations

LIST: Final = "tests/house/old_docstrings.txt"
CHANGED_LINES_MAX: Final = 20
COMMITS_MAX: Final = 100
OPENING_CHARACTERS: Final = 60
GIT_SECONDS: Final = 20
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


def excused() -> list[str]:
    """Return the listed modules."""
    return (ROOT / LIST).read_text(encoding="utf-8").splitlines()


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder and return its output; the test is skipped where git has none."""
    if shutil.which("git") is None:
        pytest.skip("no git here: which lines a commit changed is unknown")
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=GIT_SECONDS,
    )
    if done.returncode != 0:
        pytest.skip(f"git {arguments[0]} failed, so no history is checked: {done.stderr.strip()}")
    return done.stdout


def history(root: Path) -> tuple[str, str]:
    """Return changed lines and the list's changes, as git prints them, since the list is there."""
    if Path(git(root, "rev-parse", "--show-toplevel").strip()).resolve() != root.resolve():
        pytest.skip("the folder is no clone of its own: which lines a commit changed is unknown")
    counted = ("--numstat", "--no-renames")
    lines = "the work tree\n" + git(root, "diff", *counted, "HEAD", "--", "*.py")
    listed = git(root, "diff", "--unified=0", "HEAD", "--", LIST)
    first = git(root, "log", "-1", "--diff-filter=A", "--format=%H", "--", LIST).strip()
    if not first:
        return lines, ""
    commits = ("log", "--no-merges", f"--max-count={COMMITS_MAX}", "--ancestry-path")
    since = (f"{first}..HEAD", "--")
    lines += git(root, *commits, "--format=commit %h", *counted, *since, "*.py")
    listed += git(root, *commits, "--format=", "--patch", "--unified=0", *since, LIST)
    return lines, listed


def still_listed(numstat: str, listed: Iterable[str]) -> list[str]:
    """Return a line for each listed module that one commit changed by more than the limit."""
    found, author, waiting = [], "", set(listed)
    for line in numstat.splitlines():
        added, _, rest = line.partition("\t")
        deleted, _, path = rest.partition("\t")
        if not rest:
            author = line or author
        elif path in waiting and max(int(added), int(deleted)) > CHANGED_LINES_MAX:
            found.append(
                f"{path}: {author} changed {max(int(added), int(deleted))} lines of it:"
                f" take it off {LIST}, and rewrite what is reported then"
            )
    return found


def added_again(patch: str, listed: Iterable[str]) -> set[str]:
    """Return the listed modules that were added to the list after its introduction."""
    return {line[1:] for line in patch.splitlines() if line.startswith("+")} & set(listed)


def test_docstrings_are_sentences_that_can_be_understood_alone() -> None:
    """Modules off the list have no public docstring that is a fragment or cites an unknown name."""
    old = set(excused())
    found = [
        offender
        for path, tree, _ in modules(*CODE)
        if path not in old
        for offender in offenders(path, tree)
    ]
    assert not found, "\n".join(found)


def test_the_list_has_no_module_that_needs_no_excuse() -> None:
    """A listed module exists and has an offender, and the list is sorted without repetitions."""
    listed = excused()
    trees = {path: tree for path, tree, _ in modules(*CODE)}
    done = [
        f"{path}: take it off {LIST}"
        for path in listed
        if path not in trees or next(offenders(path, trees[path]), None) is None
    ]
    assert not done, "\n".join(done)
    assert listed == sorted(set(listed))


def test_a_module_that_is_changed_leaves_the_list() -> None:
    """No listed module was changed in more than twenty lines at once, and none was added."""
    lines, patch = history(ROOT)
    listed = excused()
    assert not (found := still_listed(lines, listed)), "\n".join(found)
    assert added_again(patch, listed) == set(), f"{LIST} only shrinks"


def test_commits_since_the_list_and_the_work_tree_are_looked_at(tmp_path: Path) -> None:
    """A large change counts after the list's commit and uncommitted, a small or older one never."""
    home = {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def commit(message: str, lines: int, *, name: str) -> None:
        (tmp_path / name).write_text("".join(f"{message} {each}\n" for each in range(lines)))
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        git(tmp_path, "add", "--all")
        git(tmp_path, *identity, "commit", "--quiet", "--message", message)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.items():
            patch.setenv(name, value)
        git(tmp_path, "init", "--quiet")
        commit("before", 50, name="old.py")
        (tmp_path / LIST).parent.mkdir(parents=True)
        commit("the list", 2, name=LIST)
        commit("large", CHANGED_LINES_MAX + 1, name="large.py")
        commit("small", CHANGED_LINES_MAX, name="small.py")
        (tmp_path / "old.py").write_text("cut\n")
        (tmp_path / LIST).write_text("small.py\n")
        lines, listed = history(tmp_path)
    found = still_listed(lines, ["large.py", "old.py", "small.py"])
    assert [each.split()[0] for each in found] == ["old.py:", "large.py:"]
    assert "the work tree changed 50" in found[0]
    assert added_again(listed, ["large.py", "small.py"]) == {"small.py"}


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
