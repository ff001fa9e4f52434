"""Builds the table of docs/troubleshooting.md from schemas/refusal_catalogue.py."""

from typing import Final

from schemas.refusal_catalogue import CATALOGUE
from tests.golden.catalogue import HERE
from tests.golden.metrics_table import BEGIN, END

PAGE: Final = HERE.parents[1] / "docs" / "troubleshooting.md"
HEADER: Final = "| code | HTTP | exit code | what it means | what to do |\n|---|---|---|---|---|\n"


def page(written: str) -> str:
    """Return the page with the table that the catalogue declares."""
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(
        f"| `{code}` | {int(each.status)} | {each.exit_code} | {each.sentence} | {each.remedy} |\n"
        for code, each in CATALOGUE.items()
    )
    return f"{before}{BEGIN}\n{HEADER}{rows}\n{END}{after}"
