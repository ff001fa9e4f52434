"""Takes the README's pictures of the dashboard: `python -m tests.real.dashboard_picture`.

The page and the gateway are the real ones; the 10,000 nodes and their verdicts are made up.
"""

import asyncio
from pathlib import Path
from typing import Final, Literal

from schemas.event_subjects import event_subject
from schemas.messages import encode
from services.primitives.clock import SystemClock
from tests.real.browser import VIEWER_TOKEN, Pages, browser, until
from tests.real.test_wide_dashboard import NODES, WideFleet, gateway_of

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
VERDICTS: Final = 24
WIDTH: Final = 1400
HEIGHT: Final = 860
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


async def main() -> None:
    """Write a picture for each theme."""
    clock, fleet = SystemClock(), WideFleet()
    async with gateway_of(fleet) as (url, bus), browser() as opened:
        for number in range(VERDICTS):
            verdict = fleet.verdict(number, clock)
            await bus.publish(event_subject(verdict), encode(verdict))
        for theme in THEMES:
            page = await Pages(opened, url).open(
                VIEWER_TOKEN, viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme
            )
            await until(page, f"fleet.nodes.size === {NODES} && grid.frames.length > 0")
            await page.screenshot(path=FOLDER / f"dashboard-{theme}.png")


if __name__ == "__main__":
    asyncio.run(main())
