"""The provisioner's events about a node in words: its set-up, and its access to the bus. Pure."""

from typing import Final, Literal

from schemas import node_events as n

OUTPUT_CHARS_MAX: Final = 200
"""Of a setup command that failed: the end of its output."""

_Words = tuple[str, str, Literal["bad", "plain"]]


def setup_words(event: n.SetupRan) -> _Words:
    """How a setup command ended."""
    title = f"setup {event.command}/{event.commands}"
    took = f"{event.text}: exit {event.exit_status} after {event.duration_seconds:.1f} s"
    if not event.exit_status:
        return title, took, "plain"
    return title, f"{took}; {' '.join(event.output.split())[-OUTPUT_CHARS_MAX:]}", "bad"


def access_words(event: n.CredentialsIssued | n.CredentialsRefused | n.BusAccess) -> _Words:
    """Which credentials a node was given, or that they are refused."""
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
