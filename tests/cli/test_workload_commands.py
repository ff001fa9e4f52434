"""`navarch workload done` is run with a workload system's own credentials."""

from pathlib import Path

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.permissions import WORK_DONE
from schemas.work_done import WorkDone, WorkDoneAccepted
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.bus.protocol.endpoint_replies import requester
from tests.support import inprocess
from tests.support.secured import Secured


async def test_a_scheduler_says_that_work_has_left_and_may_say_no_more(
    secured: Secured, tmp_path: Path
) -> None:
    """A scheduler's credentials permit the one request, under its own name."""
    asked: list[tuple[WorkDone, str]] = []

    async def answer(data: bytes, headers: Headers) -> bytes:
        order = msgspec.json.decode(data, type=WorkDone)
        asked.append((order, requester(headers)))
        if order.saga != "replace-n1-7":
            raise ValueError("replace-n1-6 does not wait for work on n1")
        return encode(WorkDoneAccepted(pool="p", node=order.node, saga=order.saga))

    bus = await NatsBus.connect(secured.options("notifier"))
    await bus.serve("notifier", "", {subjects.order_wildcard(WORK_DONE): answer})

    async def navarch(*arguments: str) -> tuple[int, str, str]:
        file = str(secured.file("scheduler"))
        environment = {"NAVARCH_NATS_URL": secured.url, "NAVARCH_NATS_CREDS_FILE": file}
        return await inprocess.navarch(*arguments, cwd=tmp_path, **environment)

    code, said, _ = await navarch("workload", "done", "n1", "--saga", "replace-n1-7")
    refused = await navarch("workload", "done", "n1", "--saga", "replace-n1-6")
    other = await navarch("list")

    assert (code, said) == (0, "n1: work has left; replace-n1-7 goes on once it is confirmed\n")
    assert refused[0] == 1
    assert "does not wait for work on n1" in refused[2]
    assert other[0] == 1
    assert ["scheduler", "scheduler"] == [by for _, by in asked]
    await bus.close()
