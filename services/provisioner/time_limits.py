"""Time limits of the provisioner, in one place so that tests can shorten them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Every bound of the provisioner, in seconds."""

    call_timeout_seconds: float = 60.0
    retry_first_seconds: float = 0.1
    retry_max_seconds: float = 15.0
    bootstrap_timeout_seconds: float = 1200.0
    agent_reply_seconds: float = 10.0
    """How long an agent may take to say that it reboots."""
    reset_reply_seconds: float = 400.0
    """How long it may take to reset GPUs: longer than its own bound."""
    agent_again_seconds: float = 1.0
    agent_gone_seconds: float = 20.0
    """When nobody has answered for an agent so long, it is gone."""
    agent_lost_seconds: float = 3.0
    """The same for one whose heart does not beat any more."""
    agent_down_seconds: float = 60.0
    """How long the agent of a host that goes down may still answer; its return is waited for
    longer."""
    refusals_seconds: float = 60.0
    """How long what an agent refuses is asked for again: the last processes are leaving."""
    reboot_tries_max: int = 5
    """Of the provider."""
    leak_after_seconds: float = 120.0
    """How long a removal may take before it is called a leak."""
    sweep_interval_seconds: float = 30.0
    sweep_grace_seconds: float = 60.0
    """What is younger is left to whoever works on it."""
    sweep_look_seconds: float = 0.5
    """How often the sweep looks whether it is its turn."""
    sweep_removals_max: int = 50

    def backoff_seconds(self, tries: int) -> float:
        """The wait after so many tries, at least one."""
        return min(self.retry_first_seconds * 2.0 ** min(tries - 1, 20), self.retry_max_seconds)
