"""The dashboard's files: public, within a strict policy, complete, and without markup from text."""

import re
from typing import Final

import pytest

from services.gateway.http_app import FOLDER
from tests.gateway.conftest import Gateway

FILES: Final = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS: Final = [each for each in FILES if each.endswith(".js")]
MARKUP: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    r"|\bon\w+=\"|style=\""
)


async def test_the_page_needs_no_token_and_allows_its_own_scripts_alone(gateway: Gateway) -> None:
    """`/` is a page with a strict policy; a browser that has it is answered 304."""
    client = gateway.client("")
    answer = await client.get("/")
    assert (200, "text/html; charset=utf-8") == (
        answer.status_code,
        answer.headers["Content-Type"],
    )
    policy = dict(
        part.strip().split(" ", 1)
        for part in answer.headers["Content-Security-Policy"].split(";")
        if part
    )
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "img")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    again = await client.get("/", headers={"If-None-Match": answer.headers["ETag"]})
    assert (304, b"") == (again.status_code, again.content)


@pytest.mark.parametrize("name", FILES)
async def test_every_file_names_only_files_that_are_served(gateway: Gateway, name: str) -> None:
    """A file of the dashboard loads only the dashboard's own files."""
    client = gateway.client("")
    text = (await client.get(f"/dashboard/{name}")).raise_for_status().text
    named = re.findall(r"(?:src|href)=\"([^#\"][^\"]*)\"|from \"([^\"]+)\"", text)
    for path in (first or second for first, second in named):
        assert path.startswith(("/dashboard/", "./")), path
        own = f"/dashboard/{path.rpartition('/')[2]}"
        assert (await client.get(own)).status_code == 200, path
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert len(text.splitlines()) <= 450


@pytest.mark.parametrize("name", [*SCRIPTS, "index.html"])
def test_no_script_makes_markup_from_text(name: str) -> None:
    """Names, labels and messages of the fleet can only become text."""
    assert MARKUP.search((FOLDER / name).read_text()) is None


@pytest.mark.parametrize("path", ["/dashboard/no-such.js", "/dashboard/..%2Fviews.py"])
async def test_there_are_no_other_files(gateway: Gateway, path: str) -> None:
    """A name that is none of the files is answered 404, with a remedy."""
    answer = await gateway.client("").get(path)
    assert (404, True) == (answer.status_code, bool(answer.json()["remedy"]))


async def test_a_caller_reads_its_own_name_and_role(gateway: Gateway) -> None:
    """The dashboard shows actions by what `/caller` says; the server decides nevertheless."""
    answer = (await gateway.client("scoped-token").get("/api/v1/caller")).json()
    assert ("sue", "operator", ["train*"]) == (answer["name"], answer["role"], answer["pools"])


async def test_the_budget_is_for_callers_of_the_whole_fleet(gateway: Gateway) -> None:
    """A token for some pools is refused; another one reads what is used of the fleet's budget."""
    refused = await gateway.client("scoped-token").get("/api/v1/budget")
    assert refused.status_code == 403
    answer = await gateway.client().get("/api/v1/budget")
    assert (200, 2) == (answer.status_code, answer.json().get("unavailable_limit")), answer.text
