"""The notifier service runs on a real bus, with a real HTTP server as its workload system."""

from datetime import UTC, datetime, timedelta

from starlette.responses import PlainTextResponse

from schemas.saga_log_entries import StepFailed, StepSucceeded, UndoSucceeded
from schemas.topology import NOTIFIER_STEPS
from services.notifier.workload.webhook_notifier import POLL_SECONDS
from tests.support.settling import settled


async def test_one_cordon_and_one_drain_and_the_saga_waits(sagas, receiver, notifier):
    """The receiver gets each order once; the drain succeeds at the next status request."""
    async with notifier():
        await sagas.command("replace-1", "cordon")
        assert isinstance(await sagas.result("replace-1", "cordon"), StepSucceeded)
        await sagas.command("replace-1", "drain")
        await receiver.wait_for(lambda: len(receiver.status_requests) >= 4)
        receiver.drained = True
        before = len(receiver.status_requests)
        assert isinstance(await sagas.result("replace-1", "drain"), StepSucceeded)
    # The next request, or one already in flight; they are never a second apart.
    assert len(receiver.status_requests) - before in (0, 1)
    assert POLL_SECONDS <= 0.5
    assert [path for path, _ in receiver.orders] == ["/cordon", "/drain"]
    assert receiver.keys == ["replace-1/cordon:cordon", "replace-1/drain:drain"]
    assert receiver.orders[0][1]["node_id"] == "training-1"
    assert receiver.orders[0][1]["reason"] == "XID 79"


async def test_uncordon_is_a_step_and_the_undo_of_cordon(sagas, receiver, notifier):
    """Both send the workload system the same order."""
    async with notifier():
        await sagas.command("uncordon-1", "uncordon")
        assert isinstance(await sagas.result("uncordon-1", "uncordon"), StepSucceeded)
        await sagas.command("replace-1", "cordon")
        await sagas.result("replace-1", "cordon")
        await sagas.command("replace-1", "cordon", undo=True)
        assert isinstance(await sagas.result("replace-1", "cordon"), UndoSucceeded)
    assert [path for path, _ in receiver.orders] == ["/uncordon", "/cordon", "/uncordon"]


async def test_a_refused_order_fails_the_step(sagas, receiver, notifier):
    """The coordinator gets the status, and not the answer, which may hold a secret."""
    receiver.answers = [PlainTextResponse("node unknown to scheduler", status_code=404)]
    async with notifier():
        await sagas.command("replace-1", "cordon")
        result = await sagas.result("replace-1", "cordon")
    assert isinstance(result, StepFailed)
    assert "404 Not Found (25 bytes, not shown" in result.reason


async def test_a_drain_ends_with_its_deadline(bus, sagas, receiver, notifier):
    """The notifier stops polling after the deadline, and the coordinator gives the result."""
    async with notifier():
        await sagas.command(
            "replace-1", "drain", deadline=datetime.now(UTC) + timedelta(seconds=0.6)
        )
        await receiver.wait_for(lambda: len(receiver.status_requests) >= 1)
        await settled(bus, NOTIFIER_STEPS.stream, NOTIFIER_STEPS.name)
        polled = len(receiver.status_requests)
        await sagas.command("uncordon-1", "uncordon")
        await sagas.result("uncordon-1", "uncordon")
    assert [path for path, _ in receiver.orders] == ["/drain", "/uncordon"]
    assert len(receiver.status_requests) == polled


async def test_a_drain_survives_its_service_being_replaced(sagas, receiver, notifier):
    """The next replica polls first and does not order a drained node to drain again."""
    async with notifier():
        await sagas.command("replace-1", "drain")
        await receiver.wait_for(lambda: len(receiver.status_requests) >= 1)
    receiver.drained = True
    async with notifier():
        assert isinstance(await sagas.result("replace-1", "drain"), StepSucceeded)
    assert [path for path, _ in receiver.orders] == ["/drain"]


async def test_a_drain_cut_short_is_ordered_again_under_the_same_key(sagas, receiver, notifier):
    """The first order may or may not have arrived; the key lets the receiver deduplicate."""
    async with notifier():
        await sagas.command("replace-1", "drain")
        await receiver.wait_for(lambda: len(receiver.status_requests) >= 1)
    async with notifier():
        await receiver.wait_for(lambda: len(receiver.orders) >= 2)
        receiver.drained = True
        assert isinstance(await sagas.result("replace-1", "drain"), StepSucceeded)
    assert receiver.keys == ["replace-1/drain:drain", "replace-1/drain:drain"]


async def test_two_replicas_send_each_order_once(sagas, receiver, notifier):
    """Replicas share the durable, so each command reaches one of them."""
    receiver.drained = True
    async with notifier(), notifier():
        for number in range(20):
            await sagas.command(f"replace-{number}", "drain")
        for number in range(20):
            await sagas.result(f"replace-{number}", "drain")
    assert sorted(receiver.keys) == sorted(f"replace-{number}/drain:drain" for number in range(20))


async def test_many_nodes_are_cordoned_side_by_side(sagas, receiver, notifier):
    """A workload system that is slow for one node does not delay the others."""
    async with notifier():
        for number in range(100):
            await sagas.command(f"replace-{number}", "cordon")
        await receiver.wait_for(lambda: len(receiver.orders) >= 100)
    assert len(set(receiver.keys)) == 100


async def test_a_drain_that_does_not_wait_gives_the_order_and_does_not_poll(
    sagas, receiver, notifier
):
    """Mode immediate: the workload system gets the order, and the drain is not polled."""
    async with notifier():
        await sagas.command("replace-1", "drain", wait=False)
        assert isinstance(await sagas.result("replace-1", "drain"), StepSucceeded)
    assert ["/drain"] == [path for path, _ in receiver.orders]
    assert [] == receiver.status_requests


async def test_a_drain_that_nothing_confirms_says_so(sagas, receiver, notifier):
    """`drain: {completes: at-once}`: the step ends, and its output does not claim an empty node."""
    async with notifier(drain_status_url="", drain={"completes": "at-once"}):
        await sagas.command("replace-1", "drain")
        result = await sagas.result("replace-1", "drain")
    assert isinstance(result, StepSucceeded)
    assert {"drain_confirmed": False} == result.outputs
    assert (["/drain"], []) == ([path for path, _ in receiver.orders], receiver.status_requests)
