"""Pages of the documentation site that are not files of this folder: mkdocs calls these functions.

The README is the home page; the commands and the HTTP API are described from the code.
"""

import ast
import posixpath
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
SCENARIOS: Final = ROOT / "config" / "scenarios"
SHOWN: Final = {
    ROOT / "README.md": "index.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "SECURITY.md": "report-a-vulnerability.md",
    ROOT / "LICENSE": "LICENSE.txt",
    SCENARIOS / "README.md": "scenarios/index.md",
    **{each: f"scenarios/{each.name}" for each in SCENARIOS.glob("*.yaml")},
}
"""File of the repository -> its place in the site."""
_LINK: Final = re.compile(r"(?P<start>\]\(|srcset=\"|src=\")(?P<target>[^)\"#]+)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    pages = {page: path.read_text("utf-8") for path, page in SHOWN.items()}
    pages |= {"cli.md": commands_page(), "http-api-paths.md": paths_page()}
    pages |= {"modules.md": modules_page()}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: Any) -> str:
    """Links between files of the repository become links between pages."""
    places = {place: path for path, place in SHOWN.items()}
    source = places.get(page.file.src_uri, ROOT / "docs" / page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        path = (source.parent / found["target"]).resolve()
        if path in SHOWN:
            place = SHOWN[path]
        elif path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        else:
            return found[0]
        return found["start"] + posixpath.relpath(place, folder or ".")

    return _LINK.sub(moved, markdown)


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    import typer.main  # noqa: PLC0415
    from typer.cli import get_docs_for_click  # noqa: PLC0415

    from services.cli.app import app  # noqa: PLC0415

    command = typer.main.get_command(app)
    context: Any = command.make_context("navarch", ["--help"], resilient_parsing=True)
    return get_docs_for_click(
        obj=command, ctx=context, name="navarch", title="Commands of `navarch`"
    )


def paths_page() -> str:
    """Every path of the HTTP API with its parameters and answers."""
    from services.gateway.api_description import api_description  # noqa: PLC0415

    description = api_description()
    lines = ["# Paths of the HTTP API", "", "From `/api/v1/openapi.json`, which has the schemas."]
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            lines += ["", f"## `{method.upper()} {path}`", "", call.get("description", "")]
            rows = [_parameter_row(each) for each in call.get("parameters", ())]
            if rows:
                lines += ["", "| parameter | in | meaning |", "|---|---|---|", *rows]
            lines += ["", "| answer | meaning |", "|---|---|"]
            lines += [
                f"| {status} | {answer.get('description', '')} |"
                for status, answer in call["responses"].items()
            ]
    return "\n".join(lines) + "\n"


def modules_page() -> str:
    """Return every module with the first line of its docstring, by folder."""
    lines = ["# Modules", "", "[Architecture](architecture.md) has how they belong together."]
    for folder, paths in groupby(modules(), key=lambda each: each.parent):
        lines += ["", f"## `{folder.relative_to(ROOT)}/`", "", "| module | |", "|---|---|"]
        lines += [f"| `{path.name}` | {_first_line(path)} |" for path in paths]
    return "\n".join(lines) + "\n"


def modules() -> list[Path]:
    """The files of all packages that are installed, by folder."""
    found = (
        path for top in ("schemas", "agent", "services") for path in (ROOT / top).rglob("*.py")
    )
    return sorted(
        (path for path in found if path.stem not in ("__init__", "__main__")),
        key=lambda each: (each.parent, each.name),
    )


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.partition("\n")[0].replace("|", "\\|")


def _parameter_row(parameter: dict[str, Any]) -> str:
    return f"| `{parameter['name']}` | {parameter['in']} | {parameter.get('description', '')} |"
