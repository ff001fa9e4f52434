"""Settings that agents receive."""

from typing import Annotated

import msgspec

from schemas.duration import Duration


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that agents receive, and when a silent agent is lost."""

    bus_url: str = ""
    """Where agents on nodes reach the bus, for `{{.ControlPlane}}`; empty: `nats.url`. With a name
    or IPv4 address and `tls://`, the bus that `navarch serve` starts listens there, encrypted."""
    install_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Where `navarch serve` gives machines that have a token the agent to install, encrypted as the
    bus is; 0: nowhere, and the agent is installed before a machine joins by hand. A reload does not
    change it."""
    region_bus_urls: dict[str, str] = {}
    """The same by a provider's region, where that has a server of its own."""
    heartbeat_interval: Duration = Duration(10)
    """How often an agent reports that it lives."""
    heartbeat_ttl: Duration = Duration(30)
    """Whole seconds, because the server counts in seconds."""
    sample_interval: Duration = Duration(1)
    """How often an agent reads its GPUs."""
    telemetry_interval: Duration = Duration(15)
    """How often an agent publishes the readings."""
    enroll_within: Duration = Duration(3600)
    """How long after the launch decision a new node may enroll."""
    credentials_valid: Duration = Duration(86_400)
    """How long an agent's credentials are valid; it renews them in the first half of that."""
    rejoin_within: Duration = Duration(30 * 86_400)
    """How long an agent whose credentials have expired may still request others."""
    package: str = ""
    """What `user_data: auto` installs with pip if the image has no agent: a wheel's URL, a path in
    the image, or a name that the image's own index has. Empty: the image must have the agent."""
