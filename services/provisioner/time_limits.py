"""Time limits of the provisioner, in one place so that tests can shorten them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Holds every limit, in seconds."""

    call_timeout_seconds: float = 60.0
    retry_first_seconds: float = 0.1
    retry_max_seconds: float = 15.0
    bootstrap_timeout_seconds: float = 1200.0
    agent_reply_seconds: float = 10.0
    """How long an agent may take to acknowledge a reboot."""
    reset_reply_seconds: float = 400.0
    """How long an agent may take to reset GPUs: longer than its own limit."""
    agent_again_seconds: float = 1.0
    agent_gone_seconds: float = 20.0
    """An agent that has not answered for so long counts as gone."""
    agent_lost_seconds: float = 3.0
    """The same for a node whose heartbeats have stopped."""
    agent_down_seconds: float = 60.0
    """How long the agent of a host that is shutting down may still answer."""
    refusals_seconds: float = 60.0
    """How long a request that the agent refuses is repeated: the last processes are leaving."""
    cold_restart_seconds: float = 360.0
    """How long it may take to switch a machine off and on."""
    reboot_tries_max: int = 5
    """Reboot requests to the provider."""
    accepted_within_seconds: float = 300.0
    """A replacement waits so long for the provider to accept the removal, and then launches."""
    leak_after_seconds: float = 1800.0
    """A removal that takes longer is recorded as a leak, unless the provider is removing it."""
    sweep_interval_seconds: float = 30.0
    sweep_grace_seconds: float = 60.0
    """The sweep leaves younger instances to the launch or removal that works on them."""
    sweep_look_seconds: float = 0.5
    """How often a replica checks whether a sweep is due and it holds the lease."""
    sweep_removals_max: int = 50

    def backoff_seconds(self, tries: int) -> float:
        """Return the wait after so many tries, at least one."""
        return min(self.retry_first_seconds * 2.0 ** min(tries - 1, 20), self.retry_max_seconds)

    def retry_seconds(self, tries: int, retry_after: float | None) -> float:
        """Return the same, but no less than the provider demands."""
        return max(self.backoff_seconds(tries), retry_after or 0.0)
