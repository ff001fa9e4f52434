"""Compares the RDMA ports of this host with its type's, and with those that it has had. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from agent.conditions.engine import Observed, Seen
from agent.conditions.gpu_reader import RATE_PART_MIN
from schemas.node_events import CheckResult

RDMA: Final = "rdma-devices"
"""Name of the condition, and of the boot check."""
DETAIL_CHARS_MAX: Final = 1000
"""Of what a boot check says."""
PORTS_MAX: Final = 512


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one port as the kernel shows it."""

    device: str
    port: str = "1"
    link_layer: str = ""
    gbit_per_second: float = 0.0
    """0: the kernel shows none."""
    active: bool = True

    @property
    def key(self) -> str:
        """Return the name by which the port is known."""
        return f"{self.device}/{self.port}"


Ports = Mapping[str, RdmaPort]
"""Name -> port, each with the highest rate that it has had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNeeds:
    """Says what the host's type has; 0 and empty: not known."""

    devices: int = 0
    link_layer: str = ""
    gbit_per_second: float = 0.0


def devices_up(needs: RdmaNeeds, ports: Sequence[RdmaPort]) -> tuple[str, ...]:
    """Return the names of the devices that count and have an active port.

    Those of another link layer (the bond of an InfiniBand host's Ethernet) do not count: than the
    type's or, where that is not known, than that of most where at least as many as needed share it.
    """
    layers: dict[str, set[str]] = {}
    for each in ports:
        layers.setdefault(each.link_layer, set()).add(each.device)
    layer = needs.link_layer
    if not layer and needs.devices:
        most = max(layers, key=lambda each: len(layers[each]), default="")
        layer = most if len(layers.get(most, ())) >= needs.devices else ""
    up = (each for each in ports if each.active and layer in ("", each.link_layer))
    return tuple(dict.fromkeys(each.device for each in up))


def kept(before: Ports, ports: Iterable[RdmaPort]) -> dict[str, RdmaPort]:
    """Add the ports that are up to those that the host has had."""
    found = dict(before)
    for each in ports:
        was = found.get(each.key)
        faster = was is None or each.gbit_per_second > was.gbit_per_second
        if each.active and faster and (was is not None or len(found) < PORTS_MAX):
            found[each.key] = each
    return found


def after_boot(before: Ports, ports: Sequence[RdmaPort]) -> Ports:
    """Return which of the earlier boot's ports still count.

    None, where of each link layer no fewer are up, and none is slower: they may have other names.
    """
    for layer in {each.link_layer for each in before.values()}:
        had = _rates(layer, before.values())
        now = _rates(layer, (each for each in ports if each.active))
        slower = (rate < RATE_PART_MIN * was for rate, was in zip(now, had, strict=False))
        if len(now) < len(had) or any(slower):
            return before
    return {}


def _rates(layer: str, ports: Iterable[RdmaPort]) -> list[float]:
    """Return the rates of a layer's ports, the highest first."""
    of_layer = (each.gbit_per_second for each in ports if each.link_layer == layer)
    return sorted(of_layer, reverse=True)


def rdma_check(needs: RdmaNeeds, before: Ports, ports: Sequence[RdmaPort] | None) -> CheckResult:
    """Compare the ports with what there must be; None: reading them hangs.

    More are no fault: a cloud's host may have one for its storage or for the network of its own.
    """
    if ports is None:
        return CheckResult(name=RDMA, ok=False, detail="the state of the RDMA devices is not read")
    up = devices_up(needs, ports)
    named = f" ({', '.join(up)})" if up else ""
    detail = f"{len(up)} RDMA devices are up{named}"
    if needs.devices:
        detail += f", {needs.devices} are expected"
    problems = _problems(needs, before, ports)
    text = ": ".join([detail, "; ".join(problems)] if problems else [detail])
    ok = len(up) >= needs.devices and not problems
    return CheckResult(name=RDMA, ok=ok, detail=text[:DETAIL_CHARS_MAX])


def read_rdma(needs: RdmaNeeds, before: Ports, ports: Sequence[RdmaPort] | None) -> Observed:
    """Return whether the ports are as they must be."""
    check = rdma_check(needs, before, ports)
    if ports is None:
        return Observed("rdma", {}, {-1: check.detail})
    return Observed("rdma", {} if check.ok else {(RDMA, -1): Seen(check.detail)})


def _problems(needs: RdmaNeeds, before: Ports, ports: Sequence[RdmaPort]) -> list[str]:
    """Name the ports that are not what they were, or slower than the type's."""
    here = {each.key: each for each in ports}
    found = []
    for key, was in before.items():
        now = here.get(key)
        if now is None or not now.active:
            found.append(f"{key} was up and is {'gone' if now is None else 'down'}")
        elif now.link_layer != was.link_layer:
            found.append(f"{key} was {was.link_layer or '?'} and is {now.link_layer or '?'}")
    for each in ports:
        if not each.active or not each.gbit_per_second:
            continue
        rate = before[each.key].gbit_per_second if each.key in before else 0.0
        if needs.link_layer and each.link_layer == needs.link_layer:
            rate = max(rate, needs.gbit_per_second)
        if each.gbit_per_second < RATE_PART_MIN * rate:
            found.append(f"{each.key} has {each.gbit_per_second:g} of {rate:g} Gb/s")
    return found
