"""Credentials of few rights hear nothing of others, and answer none of their questions."""

from typing import Final

import pytest

from schemas import permissions, subjects
from schemas.topology import EVERY_STREAM
from tests.redteam.test_account_walls import concrete
from tests.support.secured import Secured

FEW: Final = ("scheduler", permissions.SINK_READER)
ROOT: Final = "navarch.v1"
SECRETS: Final = (
    *("_INBOX.>", "_R_.>", "$SYS.>", "$JS.>", "$JS.ACK.>", "$KV.>", "$O.>", "$SRV.>"),
    *(f"{ROOT}.query.>", f"{ROOT}.order.>", f"{ROOT}.request.>", f"{ROOT}.enroll.>"),
    *(f"{ROOT}.node.*.*.command.>", f"{ROOT}.pool.*.request.>", f"{ROOT}.saga.>", ">", "*.>", "*"),
    *(permissions.inbox(each) + ".>" for each in permissions.SERVICES),
    *(permissions.inbox(each) + ".>" for each in ("operator", "viewer", "admin")),
)


def overheard() -> list[tuple[str, str]]:
    """Return subscriptions to everything stored, to its copies, and to what others are sent."""
    stored = [each for spec in EVERY_STREAM for each in spec.subjects]
    copies = [f"{subjects.LIVE}.{each}" for each in stored]
    return [("subscribe", each) for each in dict.fromkeys([*SECRETS, *stored, *copies])]


@pytest.mark.parametrize("who", FEW)
async def test_few_rights_hear_nothing_of_others(secured: Secured, who: str) -> None:
    """A workload system and a reader of events hear their own answers, and no stream."""
    own = {subjects.SINKS} if who == permissions.SINK_READER else set()
    wanted = [each for each in overheard() if each[1] not in own]
    assert await secured.refused(who, wanted) == set(wanted)


async def test_the_gateway_hears_no_request_and_no_secret(secured: Secured) -> None:
    """The gateway follows events, records of nodes and pools, and sagas, and hears nothing else."""
    wanted = [each for each in overheard() if each[1] in SECRETS and each[1] != subjects.SAGAS]
    assert await secured.refused(permissions.GATEWAY, wanted) == set(wanted)


@pytest.mark.parametrize("who", [*FEW, permissions.GATEWAY])
async def test_few_rights_publish_into_no_inbox(secured: Secured, who: str) -> None:
    """An answer to another's question would be believed."""
    inboxes = [permissions.inbox(each) for each in (*permissions.SERVICES, "operator", "admin")]
    wanted = [("publish", f"{each}.answer.1") for each in inboxes]
    wanted += [("publish", concrete(each)) for each in ("_R_.x.1", "$SYS.REQ.SERVER.PING")]
    assert await secured.refused(who, wanted) == set(wanted)
