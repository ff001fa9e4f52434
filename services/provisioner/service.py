"""Wires the provisioner: saga steps, sweep, price reader and query endpoints."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from schemas import subjects
from schemas.fleet_queries import Page, Query
from schemas.instance_type_catalogue import InstanceTypes
from schemas.messages import encode
from schemas.settings import PROVIDER_PLUGINS, Settings
from schemas.topology import PROVISIONER_STEPS
from services.bus.leases import Lease
from services.bus.port import Endpoint, Headers
from services.primitives.plugin_boundary import GuardedPlugin, ServiceSide
from services.provisioner.bootstrap.enrollment_endpoint import EnrollmentEndpoint
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.host_reports.report_poller import NoticeQueueReader, ReportPoller
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.joins.join_endpoints import JoinEndpoints
from services.provisioner.launch.gang_barrier import GangBarrier
from services.provisioner.launch.type_settings import TypeSettings
from services.provisioner.offerings.offering_allocator import OfferingAllocator
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_queries import answer_offerings
from services.provisioner.offerings.offering_scorer import OfferingScorer
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.offerings.placements import Placements
from services.provisioner.offerings.price_reader import PriceReader
from services.provisioner.offerings.scheduler_plugins import Schedulers
from services.provisioner.provider_client.cloud_credentials import add_stored_credentials
from services.provisioner.provider_client.launch_batches import (
    MakeLaunchBatches,
    local_launch_batches,
    shared_launch_batches,
)
from services.provisioner.provider_client.provider import (
    Environment,
    ListJoined,
    Provider,
    none_joined,
)
from services.provisioner.provider_client.provider_calls import CONTRACT, ProviderCalls, Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.rate_limit import (
    MakeRateLimiter,
    SharedRateLimiter,
    local_rate_limiter,
)
from services.provisioner.provider_client.unknown_errors import UnknownErrors
from services.provisioner.removal.credentials_revoker import NodeDisconnector, Revoker
from services.provisioner.removal.orphans import Orphans
from services.provisioner.removal.remover import Remover
from services.provisioner.removal.sweep_endpoints import SweepEndpoints
from services.provisioner.removal.sweeper import LEASE_NAME, Sweeper
from services.provisioner.removal.user_expiry import UserExpiry
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.provisioner.time_limits import TimeLimits
from services.runtime.process import Context, Service
from services.saga.participant import Participant
from services.settings.instance_type_file import load_instance_types
from services.settings.plugin_loader import make_plugin
from services.settings.problem_list import ProblemList
from services.settings.stored_pools import host_files

log = logging.getLogger(__name__)


async def build(context: Context) -> Service:
    """Build the service with the configured providers."""
    limits = TimeLimits()
    unknown = UnknownErrors(context.bus, context.clock)
    bus = ServiceSide(context.bus, asyncio.get_running_loop())
    load = partial(
        load_providers,
        file=context.settings_file,
        rate_limiter=partial(SharedRateLimiter, bus, context.clock),
        launch_batches=partial(shared_launch_batches, bus),
        joined=InstanceStore(bus).joined,
    )
    providers = Providers(
        {
            each.name: ProviderCalls(
                each,
                call_timeout_seconds=limits.call_timeout_seconds,
                report_unknown=unknown.report,
                plugin=_guarded(context, each, load),
            )
            for each in load(context.settings)
        },
        {name: each.type for name, each in context.settings.providers.items()},
    )
    types = load_instance_types(context.settings.instance_types, context.settings_file)
    for calls in providers.calls.values():
        try:
            await calls.resume()
        except ProviderError as error:
            # Nodes that do not come back are lost and replaced: the service starts anyway.
            log.warning("not resumed", extra={"reason": str(error)})
    return assemble(context, providers, limits, types)


def _guarded(
    context: Context, provider: Provider, load: Callable[[Settings], list[Provider]]
) -> GuardedPlugin:
    configured = context.settings.providers[provider.name]
    one = msgspec.structs.replace(context.settings, providers={provider.name: configured})
    return context.plugins.guard(
        CONTRACT,
        provider,
        configured.type,
        f"provider {provider.name}",
        make=lambda: load(one)[0],
    )


def check(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError with every provider, strategy and type that cannot be loaded."""
    problems, providers = ProblemList(), list[Provider]()
    with problems.collecting():
        load_instance_types(settings.instance_types, file)
    for name, spec in settings.pools.items():
        with problems.collecting():
            Schedulers({name: spec}, file)
    for name, configured in settings.providers.items():
        one = msgspec.structs.replace(settings, providers={name: configured})
        with problems.collecting():
            providers += load_providers(one, file, local_rate_limiter, local_launch_batches)

    async def close() -> None:
        await asyncio.gather(*(each.close() for each in providers))

    asyncio.run(close())
    problems.raise_found()


def load_providers(
    settings: Settings,
    file: Path | None,
    rate_limiter: MakeRateLimiter,
    launch_batches: MakeLaunchBatches,
    joined: ListJoined = none_joined,
) -> list[Provider]:
    """Construct every provider under `providers:`; a wrong option is a ConfigurationError."""
    made: list[Provider] = []
    for name, configured in settings.providers.items():
        plugin = add_stored_credentials(name, configured, Path(settings.data_dir))
        environment = Environment(
            name=name,
            fleet=settings.fleet,
            nats_url=settings.nats.url,
            agent_signing_file=settings.nats.agent_signing_file,
            nats_tls_ca_file=settings.nats.tls_ca_file,
            data_dir=Path(settings.data_dir),
            agent=settings.agent,
            rate_limiter=rate_limiter,
            launch_batches=launch_batches,
            joined=joined,
        )
        made.append(make_plugin(PROVIDER_PLUGINS, plugin, file, environment=environment))
    return made


def assemble(
    context: Context,
    providers: Providers,
    limits: TimeLimits,
    types: InstanceTypes = InstanceTypes(),  # noqa: B008 - it is frozen
) -> Service:
    """Wire the parts."""
    bus, clock = context.bus, context.clock
    store = InstanceStore(bus)
    settings, file = context.settings, context.settings_file
    nats, agent = settings.nats, settings.agent
    offerings = OfferingStore(bus, clock)
    scorer = OfferingScorer(store, clock, OfferingCatalogue(types, providers.traits()))
    schedulers = Schedulers(settings.pools, file, context.plugins)
    placements = Placements(clock, store, offerings)
    allocator = OfferingAllocator(
        bus, clock, store, offerings, scorer, schedulers, placements, settings.spend_cap
    )
    gangs = GangBarrier(clock, store, offerings, placements)
    of_type = TypeSettings(providers, scorer.catalogue)
    templates = _templates(settings, file, of_type)
    steps = SagaStepHandlers(
        *(bus, clock, store, providers, limits, templates),
        *(allocator, gangs, offerings, context.replica, settings.providers),
    )
    enrollment = _enrollment(context, store, providers, templates, steps.remover)
    participant = Participant(bus, clock, steps.actions, steps.undos)
    reports = ReportPoller(bus, clock, store, providers)
    queues = NoticeQueueReader(bus, clock, store, providers, reports.poll)
    prices = PriceReader(bus, clock, offerings, providers, scorer.catalogue)
    sweeper = Sweeper(
        *(bus, clock, store, providers, steps.remover, limits, partial(observes, settings)),
        fleet_name=settings.fleet,
        report=context.instruments.failures.update,
    )
    lease = Lease(bus, clock, LEASE_NAME, context.replica)
    failures = context.instruments.failures
    revoker = Revoker(bus, clock, nats, agent.credentials_valid, failures)
    users = UserExpiry(nats, clock, failures)
    disconnections = NodeDisconnector(bus, clock, store, can_revoke=bool(nats.revocation_file))

    async def close() -> None:
        await asyncio.gather(lease.release(), providers.close())

    return Service(
        description="Launches and removes instances, and loses none",
        consumers=(participant.consumer(PROVISIONER_STEPS),),
        tasks=(
            lease.keep,
            lambda: sweeper.run(lease),
            lambda: prices.run(lease),
            lambda: reports.run(lease),
            *((lambda: queues.run(lease),) if queues.has_queues else ()),
            revoker.run,
            *((users.run,) if nats.revocation_file else ()),
        ),
        endpoints={
            subjects.query("instances"): answer_instances(store),
            subjects.query("offerings"): answer_offerings(bus, store, offerings, scorer),
            **enrollment,
            **disconnections.endpoints,
            **SweepEndpoints(bus, clock, sweeper, lease, context.replica).endpoints,
        },
        close=close,
    )


def _enrollment(
    context: Context,
    store: InstanceStore,
    providers: Providers,
    templates: BootstrapTemplates,
    remover: Remover,
) -> dict[str, Endpoint]:
    """Return the answers to agents that request credentials, and to operators about tokens."""
    bus, clock, settings = context.bus, context.clock, context.settings

    async def node_of_pod(provider: str, token: str) -> str:
        return await providers.get(provider).node_of_pod(token)

    joins = JoinEndpoints(bus, clock, store, Orphans(bus, clock, store, remover), templates)
    enrollment = EnrollmentEndpoint(
        *(bus, clock, store, settings.agent, settings.nats, node_of_pod, joins.use)
    )
    return {
        subjects.ENROLL: enrollment.answer,
        subjects.ENROLL_POD: enrollment.answer_pod,
        **joins.endpoints,
    }


def _templates(settings: Settings, file: Path | None, of_type: TypeSettings) -> BootstrapTemplates:
    """The templates of a configuration, whose paths are relative to its file."""
    directory = file.parent if file else Path()
    files = host_files(settings)
    return BootstrapTemplates(settings.nats, settings.agent, directory, files, of_type.of)


def observes(settings: Settings, pool: str) -> bool:
    """Return whether nothing is to be changed in a pool."""
    spec = settings.pools.get(pool)
    return settings.mode == "observe" or (spec is not None and spec.mode == "observe")


def answer_instances(store: InstanceStore) -> Endpoint:
    """Answer the instances query, in pages by key; terminated ones only on request."""

    async def answer(data: bytes, _: Headers) -> bytes:
        query = msgspec.json.decode(data or b"{}", type=Query)
        names = {each for each in (query.node, *query.names) if each}
        records = await store.all(query.pool, names)
        found = sorted(
            key
            for key, record in records.items()
            if key > query.after
            and (query.terminated or record.state != "terminated")
            and query.state in ("", record.state)
        )
        page = found[: query.limit]
        items = tuple(msgspec.Raw(encode(records[key])) for key in page)
        return encode(Page(items=items, next=page[-1] if len(found) > len(page) else ""))

    return answer
