"""The sizes that `make size` prints are those of the files, and a difference is never needed."""

from pathlib import Path

from tests.house.size import Size, files_of, sizes, table

PASSAGE = "".join(f"    call({each})\n" for each in range(7))


def test_lines_functions_and_repeated_passages_are_counted_by_package() -> None:
    """A passage counts once wherever it occurs; comments, blank lines and imports do not matter."""
    found = sizes(
        {
            "services/bus/a.py": f"import a\n\n\ndef one():\n{PASSAGE}",
            "services/cli/b.py": "async def two():\n" + PASSAGE.replace("call(3)", "# why\n"),
            "services/cli/c.py": "x = 1\n" + PASSAGE.replace("    call(3)", "\n# why\n    call(3)"),
            "agent/d.py": "".join(PASSAGE.splitlines(keepends=True)[:5]),
        }
    )
    assert found == {
        "services/bus": Size(11, 1, 1, 1, 7),
        "services/cli": Size(19, 2, 1, 1, 7),
        "agent": Size(5, 1),
        "all": Size(35, 4, 2, 2, 14),
    }


def test_the_difference_is_beside_each_figure_that_changed() -> None:
    """A figure that changed has its difference in brackets; a package that is gone has its row."""
    now = {"agent": Size(1_200, 3, 40), "all": Size(1_200, 3, 40)}
    text = table(now, {"agent": Size(1_000, 3, 41), "docs": Size(5), "all": Size(1_005, 3, 41)})
    rows = [line.split() for line in text.splitlines()[1:]]
    assert rows == [
        ["agent", "1,200", "(+200)", "3", "40", "(-1)", "0", "0"],
        ["docs", "0", "(-5)", "0", "0", "0", "0"],
        ["all", "1,200", "(+195)", "3", "40", "(-1)", "0", "0"],
    ]


def test_a_folder_without_history_has_a_reason_and_no_difference(tmp_path: Path) -> None:
    """The reason why a commit cannot be read is returned, to be printed instead."""
    assert "git" in files_of(tmp_path, "HEAD~1")
