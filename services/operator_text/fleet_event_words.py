"""Describes events about the fleet's services, and the provisioner's about a node, in words.

Pure.
"""

from typing import Final, Literal

from schemas import fleet_events as f
from schemas import node_events as n

OUTPUT_CHARS_MAX: Final = 200
"""Of a setup command that failed: the end of its output."""
_Words = tuple[str, str, Literal["good", "bad", "plain"]]


def setup_words(event: n.SetupRan) -> _Words:
    """Return how a setup command ended."""
    title = f"setup {event.command}/{event.commands}"
    took = f"{event.text}: exit {event.exit_status} after {event.duration_seconds:.1f} s"
    if not event.exit_status:
        return title, took, "plain"
    return title, f"{took}; {' '.join(event.output.split())[-OUTPUT_CHARS_MAX:]}", "bad"


def access_words(event: n.CredentialsIssued | n.CredentialsRefused | n.BusAccess) -> _Words:
    """Return which credentials a node was given, or that they are refused."""
    match event:
        case n.CredentialsIssued():
            return "credentials issued", f"to its agent, for key {event.key[:9]}…", "plain"
        case n.CredentialsRefused():
            return "credentials refused", event.reason, "bad"
        case n.BusAccess(refused=True):
            detail = f"{event.reason}; to readmit it: navarch readmit {event.node}"
            return "disconnected", detail, "bad"
        case n.BusAccess():
            return "readmitted", f"by {event.by}" if event.by else "", "plain"


def fleet_event_words(message: f.FleetEvent) -> _Words:
    """Return the title, detail and tone."""
    match message:
        case f.ConsumerLag(status="lagging"):
            advice = "check that its service runs, and whether one replica is enough"
            return "lagging", advise(f"{message.stream}: {message.reason}", advice), "bad"
        case f.ConsumerLag():
            return "caught up", f"{message.stream}: {message.reason}", "good"
        case f.UnknownError():
            how = "" if message.treated_as == "TRANSIENT" else ", judged by its HTTP status alone"
            text = (
                f"{message.call} failed with {message.code}: {message.message.rstrip('.')}. It is "
                f"treated as {message.treated_as}{how}; further errors with this code are not "
                "reported"
            )
            advice = "act on the provider's message, and report the code so that it is classified"
            return "unknown error", advise(text, advice), "bad"
        case f.HttpChange():
            why = f": {message.reason}" if message.reason else ""
            text = f"{message.change} as {message.role} from {message.address}{why}"
            tone: Literal["good", "bad", "plain"] = (
                "plain" if message.outcome in ("accepted", "unanswered") else "bad"
            )
            return f"HTTP change {message.outcome}", text, tone
        case f.OrderAnswered():
            why = f": {message.reason}" if message.reason else ""
            what = f"{message.order} {message.content}".rstrip()
            return f"order {message.outcome}", f"{what}{why}", "plain" if not why else "bad"
        case f.ServiceFailure(status="failing"):
            what = f"{message.service}: {message.reason}"
            return "failing", advise(what, message.remedy), "bad"
        case f.ServiceFailure():
            return "works again", f"{message.service}: it failed because {message.reason}", "good"
        case _:
            return "", "", "plain"


def advise(text: str, remedy: str) -> str:
    """A text with what an operator does about it."""
    return f"{text.rstrip('. ')}. What to do: {remedy}" if remedy else text
