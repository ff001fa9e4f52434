"""The in-memory server when two things happen at the same moment."""

import asyncio
from contextlib import aclosing

import pytest

from schemas import headers as h
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.primitives.errors import Conflict
from services.simulator.engine.virtual_time import VirtualClock, run

BUCKET = {
    "name": "S",
    "subjects": ["s.>"],
    "storage": "file",
    "max_msgs_per_subject": 1,
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": True,
    "subject_delete_marker_ttl": 60_000_000_000,
}


def test_what_comes_due_with_a_refused_message_is_delivered():
    """A key's end is not lost because another write is refused at that very moment."""

    async def work() -> tuple[str, str]:
        server = MemoryServer(VirtualClock())
        bus = MemoryBus(server, PerfectLink())
        await bus.admin("STREAM.CREATE.S", BUCKET)
        refused = []

        def refuse() -> None:
            with pytest.raises(Conflict):
                server.publish("s.other", b"", {h.EXPECTED_LAST_SUBJECT_SEQ: "9"})
            refused.append(True)

        loop = asyncio.get_running_loop()
        # Set before the server sets its own timer: at that moment it comes first.
        loop.call_at(loop.time() + 1.0, refuse)
        await bus.publish("s.beat", b"", headers={h.TTL: "1s"})
        following = bus.follow("S", ["s.>"], "new")
        async with aclosing(following), asyncio.timeout(60):
            ended = await anext(following)
        server.close()
        assert refused == [True]
        return ended.subject, ended.headers[h.MARKER_REASON]

    assert run(work) == ("s.beat", "MaxAge")
