"""Puts the health-monitor together: policy, store, judge, liveness."""

import logging
from pathlib import Path
from typing import Final

import msgspec

from schemas import subjects
from schemas.settings import Settings
from schemas.topology import HEALTH_EVENTS, HEALTH_TIMERS
from services.bus.leases import Lease
from services.bus.port import Headers
from services.health_monitor.correlation_watch import CorrelationWatch, JobWatch
from services.health_monitor.fact_intake import FactIntake
from services.health_monitor.fault_handler import (
    EarlierFaults,
    FaultHandler,
    decode_timer,
    node_of,
    signature_of,
    timer_node_of,
)
from services.health_monitor.health_audit import HealthAudit
from services.health_monitor.health_store import HealthStore
from services.health_monitor.heartbeat_watch import HeartbeatWatch
from services.health_monitor.level_watch import LevelWatch
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.job_faults import JobFaultHistory
from services.health_monitor.rules.policy_explanation import policy_view
from services.health_monitor.rules.policy_file import load_policy, policy_path
from services.health_monitor.verdict_publisher import HealthInstruments, Performer
from services.primitives.clock import Clock
from services.primitives.errors import ConfigurationError
from services.runtime.consumer_loop import Consumer
from services.runtime.process import Context, Service
from services.runtime.sender_quota import SenderLimit
from services.settings.plugin_loader import setting_error

log = logging.getLogger(__name__)

LEASE: Final = "health-monitor.leader"
"""Its holder alone watches heartbeats, levels, waves and overdue reviews."""
LOOK_SECONDS: Final = 1.0
"""How often the policy file is looked at; a changed one is in force this long after, at most."""


class PolicyInForce:
    """The policy that is judged by; a changed file replaces it, a wrong one does not."""

    def __init__(self, path: Path, clock: Clock, instruments: HealthInstruments) -> None:
        """Load `path`; raise ConfigurationError where it is wrong from the start."""
        self._path = path
        self._clock = clock
        self._instruments = instruments
        self._stamp = _stamp(path)
        self._policy = load_policy(path)
        instruments.policy_loads.labels("loaded").inc()
        log.info("policy in force", extra={"file": str(path), "policy": self._policy.hash})

    def __call__(self) -> Policy:
        """The policy in force now."""
        return self._policy

    async def answer(self, _data: bytes, _headers: Headers) -> bytes:
        """Answer the query `policy` with the policy in force, as JSON."""
        return msgspec.json.encode(policy_view(self._policy))

    async def keep(self) -> None:
        """Look for a changed file, for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Take a changed file into force, unless it is wrong."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            policy = load_policy(self._path)
        except ConfigurationError as error:
            self._instruments.policy_loads.labels("refused").inc()
            log.error("%s; policy %s stays in force", error, self._policy.hash)  # noqa: TRY400
            return
        self._instruments.policy_loads.labels("loaded").inc()
        if policy.hash != self._policy.hash:
            self._policy = policy
            log.info("policy in force", extra={"file": policy.file, "policy": policy.hash})


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes with the file; zeros where there is none, as in the middle of a replacement."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if the health policy cannot be loaded."""
    path = policy_path(settings.health_policy, file)
    if settings.health_policy and not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        problem = f"{path} {wrong}; name the policy's file, or remove the key"
        raise setting_error("health_policy", problem, file)
    load_policy(path)


async def build(context: Context) -> Service:
    """Build the service."""
    instruments = HealthInstruments(context.instruments.registry)
    path = policy_path(context.settings.health_policy, context.settings_file)
    policy = PolicyInForce(path, context.clock, instruments)
    store = HealthStore(context.bus, context.clock)
    performer = Performer(context.bus, instruments)
    jobs = JobFaultHistory()
    earlier = EarlierFaults(context.bus, context.clock)
    judge = FaultHandler(store, performer, policy, context.settings, instruments, jobs, earlier)
    lease = Lease(context.bus, context.clock, LEASE, context.replica)
    liveness = HeartbeatWatch(
        context.bus,
        context.clock,
        store,
        performer,
        lease,
        context.tracing,
        context.settings.agent,
        context.settings.nats.replicas,
        context.instruments.failures,
    )
    levels = LevelWatch(
        context.bus,
        context.clock,
        store,
        performer,
        lease,
        policy,
        instruments,
        context.tracing,
        judge,
    )
    correlation = CorrelationWatch(context.bus, context.clock, lease, policy, context.settings)
    intake = FactIntake(context.bus, context.clock, lease)
    audit = HealthAudit(
        *(context.bus, context.clock, store, performer, lease),
        *(judge.register_again, judge.review),
    )
    return Service(
        description="Judges faults by the health policy, and publishes lost nodes",
        consumers=(
            Consumer(
                durable=HEALTH_EVENTS,
                decode=intake.decode,
                handle=judge.handle,
                key=node_of,
                limit=SenderLimit(signature=signature_of, rank=judge.rank),
            ),
            Consumer(
                durable=HEALTH_TIMERS,
                decode=decode_timer,
                handle=judge.handle_timer,
                key=timer_node_of,
            ),
        ),
        tasks=(
            intake.run,
            policy.keep,
            liveness.run,
            levels.run,
            correlation.run,
            audit.run,
            JobWatch(context.bus, context.clock, jobs).run,
        ),
        endpoints={subjects.query("policy"): policy.answer},
    )
