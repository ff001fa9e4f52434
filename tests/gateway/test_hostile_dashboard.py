"""Chromium shows every text that an agent or a service may write, and obeys none of it."""

import json
import re
from typing import Any, Final

import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Fault
from tests.gateway.conftest import NOW, Gateway
from tests.real.browser import OPERATOR_TOKEN, Pages, browser, require_browser, until
from tests.redteam.hostile import HOSTILE
from tests.support.serving import serving
from tests.support.settling import arriving

require_browser()
pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

MARKED: Final = "shown-as-text"
"""It comes first, so that a page that leaves the text out is noticed."""
ATTACKS: Final = (
    MARKED,
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"'><svg/onload=window.owned=1>",
    "</title><body onload=window.owned=1>",
    "</textarea></style></noscript><iframe srcdoc='<script>parent.owned=1</script>'>",
    "<a href=javascript:window.owned=1>x</a>",
    "{{constructor.constructor('window.owned=1')()}}",
    "&lt;script&gt;window.owned=1&lt;/script&gt;",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.owned=1>",
    *HOSTILE.values(),
)
ALL: Final = " ".join(ATTACKS)
LINK: Final = "javascript:window.owned=1//"
PLACE: Final = "a/../../../evil?x=1#/node/y"
NAMES: Final = frozenset({"id", "name", "pool", "node", "saga", "role", "next"})
"""Keys of what is asked for again by its name."""
KEPT: Final = NAMES | {"status", "health", "type", "kind", "tone", "severity"}
"""Keys that have a few values; they are spoilt in turn, too."""
TIMES: Final = re.compile(r"(.*_)?(at|time|since|until|change|heartbeat|expires|deadline)")
"""Keys of times, which no agent writes as text: a service makes each from a date."""
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")
OBEYED: Final = """() => ({
    owned: window.owned ?? null,
    polluted: ({}).owned ?? null,
    elements: document.querySelectorAll(
        "iframe, object, embed, base, math, img:not([src$='icon.svg']), script:not([src])").length,
    handlers: [...document.querySelectorAll("*")].filter(each =>
        [...each.attributes].some(at => at.name.startsWith("on"))).length,
    links: [...document.querySelectorAll("a[href], [src], [action], [srcdoc]")]
        .map(each => each.href ?? each.src ?? "x")
        .filter(each => !each.startsWith(location.origin + "/")),
})"""
NOTHING: Final = {"owned": None, "polluted": None, "elements": 0, "handlers": 0, "links": []}
BEGIN_CHARS: Final = 12
SHOWN: Final = "document.querySelector('#panel').innerText.toLowerCase().includes(name)"
VIEWS: Final = ("#/node/training-2", "#/node/training-1", "#/pool/training")


def spoilt(value: Any, text: str, kept: frozenset[str]) -> Any:
    """Put a text in place of every text of an answer, but of the keys that are kept."""
    match value:
        case dict():
            return {
                key: each if key in kept or TIMES.fullmatch(key) else spoilt(each, text, kept)
                for key, each in value.items()
            }
        case list():
            return [spoilt(each, text, kept) for each in value]
        case str() if not TIME.fullmatch(value):
            return text
        case _:
            return value


async def spoil(page: Any, text: str, kept: frozenset[str]) -> None:
    """Spoil every answer that the page reads from now on; its events come as they are stored."""

    async def answer(route: Any) -> None:
        if "/stream" in route.request.url:
            await route.continue_()
            return
        found = await route.fetch()
        body = await found.body()
        if "json" in found.headers.get("content-type", ""):
            body = json.dumps(spoilt(json.loads(body), text, kept)).encode()
        await route.fulfill(response=found, body=body)

    await page.route("**/api/v1/**", answer)


async def hostile_event(gateway: Gateway, number: int) -> None:
    """Store a fault with hostile text in each field that is free."""
    fault = Fault(
        id=f"f{number}",
        time=NOW,
        pool="training",
        node="training-2",
        kind="xid",
        code=79,
        system=ALL,
        message=ALL,
        source=ALL,
        job=MARKED,
    )
    await gateway.bus.publish(subjects.node_event("training", "training-2", "fault"), encode(fault))
    await arriving(gateway.bus)


@pytest.mark.parametrize(
    ("text", "kept"),
    [(ALL, KEPT), (LINK, KEPT), (PLACE, KEPT), (ALL, NAMES)],
    ids=["every text", "links", "paths", "states too"],
)
async def test_a_page_obeys_no_text_of_an_answer(
    gateway: Gateway, text: str, kept: frozenset[str]
) -> None:
    """The page's own policy would stop a script: elements, handlers and links are counted too."""
    async with serving(gateway.app) as url, browser() as opened:  # type: ignore[arg-type]
        pages = Pages(opened, url)
        page = await pages.blank()
        await spoil(page, text, kept)
        await pages.sign_in(page, OPERATOR_TOKEN)
        await until(page, "fleet.nodes.size > 0")
        await hostile_event(gateway, 1)
        await page.wait_for_selector("#events :text('shown-as-text')")
        for view in VIEWS:
            await page.evaluate("where => { location.hash = where; }", view)
            await until(page, SHOWN, text[:BEGIN_CHARS], seconds=30)
            assert await page.evaluate(OBEYED) == NOTHING, view

    assert pages.complaints == []


async def test_a_hash_of_the_address_is_no_markup(gateway: Gateway) -> None:
    """A link that an operator follows may have anything behind the sign."""
    async with serving(gateway.app) as url, browser() as opened:  # type: ignore[arg-type]
        pages = Pages(opened, url)
        page = await pages.open(OPERATOR_TOKEN)
        for text in (*ATTACKS[1:10], "__proto__", "constructor", "..%2f..%2fevil", "%"):
            for kind in ("node", "pool", "saga"):
                await page.evaluate(
                    "([kind, text]) => { location.hash = `#/${kind}/${text}`; }", [kind, text]
                )
                assert await page.evaluate(OBEYED) == NOTHING, (kind, text)

    assert [each for each in pages.complaints if "Security Policy" in each] == []
