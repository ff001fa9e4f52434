"""Holds back what is proposed in a pool, whatever node it is about. Pure."""

from datetime import datetime, timedelta
from typing import Final

from schemas.present_answers import Block
from schemas.stops import Stop
from schemas.time_text import utc_seconds
from services.operator_text.breaker_text import breaker_sentence
from services.operator_text.quantities import first_of
from services.pool_manager.planner.disruption_budget import room_at
from services.pool_manager.planner.gates.node_gates import by_hand
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.idle_nodes import has_no_work
from services.pool_manager.planner.node_counts import cordon_just_refused, cordons_wait
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.breaker import is_restored
from services.pool_manager.planner.safety.breaker_messages import spent_words, wave_words
from services.saga.definitions.saga_steps import HASTY_CORDON_SECONDS

SAGAS_NAMED_MAX: Final = 20


def stop(proposal: Proposal) -> Block | None:
    """Return the stop of operators for which nothing automatic begins."""
    return stopped(proposal.stop) if proposal.stop is not None else None


def stopped(found: Stop) -> Block:
    """Return that operators have stopped what is automatic."""
    named = f" --pool {found.pool}" if found.pool else ""
    named = f" --provider {found.provider}" if found.provider else named
    remedy = f"navarch resume{named}"
    held = "nothing automatic begins"
    if found.running:
        held += ", and open sagas that no operator asked for wait before what has no undo"
    text = f"{found.scope} is stopped {found}: {held}. To end it: {remedy}"
    return Block(gate="stop", text=text, until=found.until, remedy=remedy)


def observe(proposal: Proposal) -> Block | None:
    """Return that a pool in observe mode performs nothing, and what it would begin."""
    record, node = proposal.record, proposal.node
    if record.spec.mode != "observe":
        return None
    if node is None:
        return Block(gate="observe", text="It is in observe mode: nothing is begun.")
    would = [each.kind for each in record.observed_actions.values() if each.node == node.node]
    held = f": it would begin {' and '.join(would)}" if would else ", so nothing is performed"
    return Block(gate="observe", text=f"Its pool is in observe mode{held}.")


def auto_replace_off(proposal: Proposal) -> Block | None:
    """Return that a pool leaves every repair to operators."""
    if proposal.record.spec.health.auto_replace:
        return None
    text = "Nothing is in progress: the pool has auto_replace: false, so an operator must decide."
    remedy = by_hand(proposal.node) if proposal.node is not None else ""
    return Block(gate="auto-replace-off", text=text, remedy=remedy)


def retry(proposal: Proposal) -> Block | None:
    """Return when a launch is tried again after some have failed, or that one is tried now."""
    record, now = proposal.record, proposal.now
    if not record.failures or record.over_spend_cap:
        return None
    trying = any(each.kind == "scale-up" for each in record.open.values())
    at = record.retry_at if record.retry_at is not None and now < record.retry_at else None
    if at is None and not trying:
        return None
    tries = "1 try" if record.failures == 1 else f"{record.failures} tries in a row"
    then = f"at {utc_seconds(at)}" if at is not None else "under way"
    waits = "It waits for the next try: " if proposal.node is not None else ""
    return Block(gate="retry", text=f"{waits}{tries} failed. The next is {then}.", until=at)


def next_launch(proposal: Proposal) -> Block | None:
    """Return when a pool is brought to size again, after a launch has failed."""
    record = proposal.record
    if proposal.kind == "surplus" and record.spec.workload_names:
        return None  # what has no work leaves a pool that its workload system's names size
    return _tried_again("a launch has failed", record.retry_at, proposal)


def next_promotion(proposal: Proposal) -> Block | None:
    """Return when a spare is put into service again, after that has failed."""
    return _tried_again("the last promotion failed", proposal.record.promote_at, proposal)


def next_renewal(proposal: Proposal) -> Block | None:
    """Return when a healthy node may be replaced again, after that failed or had no room."""
    why = proposal.record.renew_wait or "the last replacement of a healthy node failed"
    return _tried_again(why, proposal.record.renew_at, proposal)


def _tried_again(why: str, at: datetime | None, proposal: Proposal) -> Block | None:
    if at is None or proposal.now >= at:
        return None
    return Block(gate="retry", text=f"Not before {utc_seconds(at)}, as {why}.", until=at)


def breaker(proposal: Proposal) -> Block | None:
    """Return that the breaker is not closed."""
    record, found = proposal.record, proposal.record.breaker
    if found.state == "closed":
        return None
    sentence, remedy = breaker_sentence(record.name, found), f"navarch breaker close {record.name}"
    at = found.probe_at if found.probe_at is not None and proposal.now < found.probe_at else None
    text = f"The breaker {sentence}"
    if proposal.node is not None:
        out = [saga for saga, each in record.open.items() if each.node]
        spent = f" In progress: {first_of(out, SAGAS_NAMED_MAX)}." if out else ""
        text = f"It waits for the breaker, which {sentence}{spent}"
    return Block(gate="breaker", text=text, until=at, remedy=f"{remedy} --reason …")


def forced_breaker(proposal: Proposal) -> Block | None:
    """Return that an operator holds the breaker open, or has not compared a restored store."""
    return breaker(proposal) if proposal.record.breaker.forced else None


def restored_store(proposal: Proposal) -> Block | None:
    """Return that an operator has yet to compare a restored store with the fleet."""
    return breaker(proposal) if is_restored(proposal.record.breaker) else None


def ramp(proposal: Proposal) -> Block | None:
    """Return that repairs begin slowly, after the breaker has closed."""
    found = proposal.record.breaker
    if found.state != "closed" or not found.ramp:
        return None
    subject = "It waits for the breaker, which" if proposal.node is not None else "The breaker"
    text = f"{subject} has closed and allows only {found.ramp} remediations at once."
    return Block(gate="ramp", text=text)


def workload_system(proposal: Proposal) -> Block | None:
    """Return when the workload system is asked for a cordon again, after it has refused some."""
    record = proposal.record
    return _refused(record.cordon_at) if cordons_wait(record, proposal.now) else None


def cordon_refused(proposal: Proposal) -> Block | None:
    """Return when a cordon that cannot wait is asked for again, after one was just refused."""
    record, at = proposal.record, proposal.record.cordon_refused_at
    refused = cordons_wait(record, proposal.now) and cordon_just_refused(record, proposal.now)
    if not refused or at is None:
        return None
    return _refused(at + timedelta(seconds=HASTY_CORDON_SECONDS))


def _refused(at: datetime | None) -> Block:
    then = f"; it is asked again at {utc_seconds(at)}" if at is not None else ""
    text = f"The workload system has not cordoned a node{then}."
    return Block(gate="workload-system", text=text, until=at)


def incident(proposal: Proposal) -> Block | None:
    """Return the incidents that hold nodes back; a recheck waits for the end of their hold."""
    record, node, now = proposal.record, proposal.node, proposal.now
    held = incidents.holding(record)
    if not held:
        return None
    if node is not None and proposal.kind == "repair":
        blocks = not incidents.may_begin(record, node, proposal.health, now)
    else:
        blocks = any(now < incidents.until(record, each) for each in held.values())
    if not blocks:
        return None
    text = f"It waits for {wave_words(record, held, now)}."
    return Block(gate="incident", text=text, until=incidents.next_end(record, now))


def room(proposal: Proposal) -> Block | None:
    """Return that as many sagas are open as may be."""
    return Block(gate="room", text=f"{proposal.full}.") if proposal.full else None


def budget(proposal: Proposal) -> Block | None:
    """Return what of the budget is spent; half of it is for what can wait."""
    allowed, record, now = proposal.allowed, proposal.record, proposal.now
    if allowed is None:
        return None
    allowed = allowed.for_no_fault() if proposal.kind == "renewal" else allowed
    node = proposal.node
    empty = node is not None and has_no_work(node, proposal.use, now)
    cause = allowed.refusal(cordoned=node is not None and node.cordoned, no_work=empty)
    if not cause:
        return None
    window = float(record.spec.budget.window)
    begun = record.voluntary if allowed.no_fault else record.disruptions
    until = room_at(begun, window, now) if cause == "rate" else None
    text = f"{spent_words(record, allowed, cause, now)}."
    return Block(gate="budget", text=text, until=until)
