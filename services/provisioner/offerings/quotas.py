"""Offerings for which a provider's quota leaves no room, as it reported. Pure.

A launch there would be refused, so none is requested. What was reported counts for minutes, but
not once an instance of the same provider has been removed since: its part may be free again.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering, is_zone_of
from schemas.offering_records import BlockRecord, OfferingQuota, PricesRecord
from services.provisioner.provider_client.provider_errors import ProviderError

COUNTS_SECONDS: Final = 600.0
"""Twice the interval at which providers are asked."""
REMOVAL_SECONDS_MAX: Final = 60.0
"""For as long a quota may be full for a machine that is being removed; then it is full."""
REMEDY: Final = "request an increase"


def covers(region: str, offering: Offering) -> bool:
    """Return whether an offering is in a region; one without a region is in that of its zone."""
    if offering.region or not region:
        return region in ("", offering.region)
    return is_zone_of(offering.zone, region)


def quota_block(
    record: PricesRecord | None, offering: Offering, model: str, now: datetime
) -> BlockRecord | None:
    """Return what a full quota blocks; None: it has room, or none is known."""
    if record is None or record.quotas_at is None:
        return None
    until = record.quotas_at + timedelta(seconds=COUNTS_SECONDS)
    full = next((each for each in record.quotas if _is_full(each, offering)), None)
    if full is None or now >= until:
        return None
    return BlockRecord(
        scope="quota",
        provider=offering.provider,
        region=full.region,
        model=model,
        market=offering.market,
        kind="QUOTA",
        reason=describe(full),
        since=record.quotas_at,
        failed_at=record.quotas_at,
        probe_at=until,
    )


def _is_full(quota: OfferingQuota, offering: Offering) -> bool:
    of = (quota.instance_type, quota.market) == (offering.instance_type, offering.market)
    return of and covers(quota.region, offering) and quota.limit - quota.used < quota.takes


def describe(quota: OfferingQuota) -> str:
    """Say how much of a quota is used, and what to do."""
    used = f"quota {quota.quota}: {quota.used:g} of {quota.limit:g} used"
    if quota.used < quota.limit:
        used += f", {quota.instance_type} takes {quota.takes}"
    return f"{used}; {REMEDY}"


def was_freed(block: BlockRecord, records: Iterable[InstanceRecord]) -> bool:
    """Return whether an instance of the provider has gone, or was to go, since the quota was read.

    A launch that failed has left a record, and no room.
    """
    return any(
        at is not None and at >= block.since
        for each in records
        if each.provider == block.provider and each.provider_id
        for at in (each.terminating_at, each.terminated_at)
    )


def refusal(
    error: ProviderError, offering: Offering, records: Iterable[InstanceRecord], now: datetime
) -> ProviderError:
    """Return a launch's error; a quota that a machine being removed still fills passes by itself.

    Providers count a machine until it is gone, some time after they have agreed to remove it.
    """
    since = now - timedelta(seconds=REMOVAL_SECONDS_MAX)
    ours = (each for each in records if each.provider == offering.provider)
    leaving = (each.terminating_at for each in ours if each.state == "terminating")
    if error.kind != "QUOTA" or not any(at is not None and at >= since for at in leaving):
        return error
    reason = f"{error.message}; a machine of {offering.provider} that is being removed still counts"
    return ProviderError("CAPACITY", reason, scope=error.scope, retry_after=error.retry_after)
