"""Computes digests of what a node's launch depends on, to be compared later. Pure.

The image and the user data are in the configuration, which each service reads for itself: the
provisioner records those that it has launched with, and the pool-manager those of now. The rest is
in a pool's record.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

import msgspec

from schemas.pool_records import PoolRecord
from schemas.settings import PluginSettings, PoolSpec

IMAGE_OPTIONS: Final = ("image", "image_family")
"""Options of providers that name the image of a machine."""
IMAGE: Final = "image"
USER_DATA: Final = "user data"
INSTANCE_TYPE: Final = "instance type"
DIGEST_CHARS: Final = 12
NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


def at(provider: str, what: str) -> str:
    """The key of what is said of one provider."""
    return f"{what} at {provider}"


def image_digest(configured: PluginSettings, of_pool: Mapping[str, Any] = NO_OPTIONS) -> str:
    """Return the digest of the image of a provider's options, or of a pool's own."""
    options = {**configured.options, **of_pool}
    return digest({key: options.get(key, "") for key in IMAGE_OPTIONS})


def sources_of(
    spec: PoolSpec, providers: Mapping[str, PluginSettings], user_data: str
) -> dict[str, str]:
    """Return what a pool's launches take from elsewhere in the configuration, where known.

    `user_data`: the digest of its user data; empty: unknown.
    """
    options = {each.name: each.options for each in spec.providers} or {spec.provider: {}}
    found = {
        at(name, IMAGE): image_digest(providers[name], of_pool)
        for name, of_pool in options.items()
        if name in providers
    }
    return found | ({USER_DATA: user_data} if user_data else {})


def configured(before: PoolRecord | None, record: PoolRecord, now: datetime) -> PoolRecord:
    """A pool's record after its settings were written, with when its launches last changed."""
    digests = {**of_spec(record.spec), **record.launch_sources}
    at = now if before is None or before.launch_digests != digests else before.configured_at
    return msgspec.structs.replace(record, launch_digests=digests, configured_at=at)


def of_spec(spec: PoolSpec) -> dict[str, str]:
    """Return what a pool's own settings say of its launches."""
    types = {each.name: each.instance_type or spec.instance_type for each in spec.providers}
    types = types or {spec.provider: spec.instance_type}
    return {
        "labels": digest(spec.labels),
        "setup commands": digest(spec.setup_commands),
        **{at(name, INSTANCE_TYPE): digest(each) for name, each in types.items()},
    }


def differences(then: Mapping[str, str], now: Mapping[str, str], provider: str) -> tuple[str, ...]:
    """Return what differs for a node of a provider; what either does not know is left out."""
    if not then or then == now:
        return ()
    if at(provider, INSTANCE_TYPE) not in now:
        return ("provider",)
    other = tuple(f" at {each}" for each in _providers(then) if each != provider)
    return tuple(
        key.removesuffix(f" at {provider}")
        for key in sorted(then)
        if key in now and then[key] != now[key] and not key.endswith(other)
    )


def digest(value: Any) -> str:
    """Return the digest of a value in its JSON form."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def _providers(then: Mapping[str, str]) -> list[str]:
    prefix = at("", INSTANCE_TYPE)
    return [key.removeprefix(prefix) for key in then if key.startswith(prefix)]
