"""Waits until a change is done, for as long as the operator allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.duration import parse_duration
from schemas.saga_log_entries import SagaDone, SagaUnwound
from schemas.stored_messages import decode_stored
from services.cli import console
from services.cli.console import Format
from services.cli.fleet_access import NodeAccess
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError


@asynccontextmanager
async def waiting(text: str, what: str) -> AsyncIterator[None]:
    """Bound a wait by `--wait-timeout`; NavarchError when the time is over. Empty: no bound."""
    try:
        async with asyncio.timeout(parse_duration(text) if text else None):
            yield
    except TimeoutError as error:
        raise NavarchError(f"not done within {text}; it goes on: navarch why {what}") from error


async def saga_end(
    fleet: NodeAccess,
    saga: str,
    output: Format,
    *,
    after: int | None = None,
    cancelled: bool = False,
) -> str:
    """Print a saga's steps until it has ended; why that is no success, or nothing.

    `cancelled`: success is that it was unwound.
    """
    stored = await console.write_stream(fleet.follow_saga(saga, after=after), output)
    last = decode_stored(stored) if stored else None
    if isinstance(last, SagaUnwound if cancelled else SagaDone):
        return ""
    if isinstance(last, SagaDone):
        return f"{saga} was done before it could be cancelled"
    return f"{saga} ended without success: {escape_line(getattr(last, 'reason', ''))}"
