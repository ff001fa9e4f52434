"""The dashboard's tests use a real browser: Debian's Chromium with Playwright and axe-core."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium") or ""
AXE: Final = "axe-core@4.14.1"
NPM_SECONDS_MAX: Final = 60
OPERATOR_TOKEN: Final = "operator-token"
VIEWER_TOKEN: Final = "viewer-token"


def require_browser() -> None:
    """Skip the module's tests where there is no browser."""
    if not CHROMIUM:
        pytest.skip("no chromium here (apt-get install chromium)", allow_module_level=True)
    pytest.importorskip("playwright", reason="no playwright here (pip install playwright)")


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """Run Chromium without a window."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - it may be missing

    async with async_playwright() as playwright:
        # A test machine's root cannot have the sandbox; the pages are our own.
        opened = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield opened
        finally:
            await opened.close()


class Pages:
    """Signed-in pages, and whatever their scripts complained about."""

    def __init__(self, opened: Any, url: str) -> None:
        self._browser = opened
        self._url = url
        self.complaints: list[str] = []

    async def open(self, token: str, path: str = "/", **options: Any) -> Any:
        """A page of its own, signed in with a token, that has read the fleet."""
        page = await self.blank(path, **options)
        await self.sign_in(page, token)
        return page

    @staticmethod
    async def sign_in(page: Any, token: str) -> None:
        """Sign in with a token, and wait until the fleet is read."""
        await page.fill("#token", token)
        await page.click("#sign-in button")
        await page.wait_for_selector(".link-state.is-live")

    async def blank(self, path: str = "/", **options: Any) -> Any:
        """A page of its own that is not signed in."""
        context = await self._browser.new_context(**options)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        await page.goto(self._url + path)
        return page

    def _listen(self, message: Any) -> None:
        if "Content Security Policy" in message.text or "Uncaught" in message.text:
            self.complaints.append(message.text)


async def until(page: Any, condition: str, name: str = "", seconds: float = 60) -> None:
    """Wait until an expression over `fleet`, `grid` and `name` holds in the page.

    Playwright's own wait evaluates text in the page, which the page's policy forbids.
    """
    script = f"""name => new Promise(done => {{
        const {{ grid, fleet }} = document.documentElement.dashboard;
        const look = () => ({condition}) ? done() : setTimeout(look, 20);
        look();
    }})"""
    async with asyncio.timeout(seconds):
        await page.evaluate(script, name)


async def axe_script(place: Path) -> str:
    """The source of axe-core, from npm; skips the test where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here: axe-core comes from there")
    process = await asyncio.create_subprocess_exec(
        *(npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts"),
        AXE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(NPM_SECONDS_MAX):
            status = await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        status = 1
    if status:
        pytest.skip("npm cannot bring axe-core here")
    return (place / "node_modules" / "axe-core" / "axe.min.js").read_text()


async def serious_findings(page: Any, axe: str) -> list[str]:
    """Return what axe-core finds that is serious or critical, by rule and element."""
    await page.evaluate(axe)
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['target']} {node.get('failureSummary', '')}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
