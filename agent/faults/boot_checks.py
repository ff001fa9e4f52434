"""Boot checks: whether the host is fit to be a node. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from agent.conditions.gpu_reader import (
    FABRIC_COMPLETED,
    fabric_problems,
    links_of,
    narrow_pcie,
)
from agent.conditions.rdma_reader import DETAIL_CHARS_MAX, RDMA
from agent.observations import Best, GpuInventory, GpuNeeds, NodeSample, common_domain
from schemas.gpu_samples import GpuSample
from schemas.node_events import CheckResult

DRIVER: Final = "driver"
INTERCONNECT: Final = "interconnect"
PCIE: Final = "pcie"
AWAITED: Final = frozenset({INTERCONNECT, RDMA})
"""Checks that may fail for a while after a boot, until the fabric manager and the network have set
links up."""


def boot_checks(
    needs: GpuNeeds,
    best: Mapping[str, Best],
    inventory: GpuInventory | None,
    sample: NodeSample | None,
    problem: str,
    kernel_log_problem: str,
) -> tuple[CheckResult, ...]:
    """Check what NVML and the kernel log returned; None: not available.

    `needs`: of the host's type; `best`: the most that each GPU has had, by UUID.
    """
    checks = [
        CheckResult(
            name="kernel-log",
            ok=not kernel_log_problem,
            detail=kernel_log_problem or "the kernel log is followed",
        )
    ]
    expected = needs.gpus
    if expected == 0:
        return (*checks, CheckResult(name="gpus-visible", ok=True, detail="no GPUs are expected"))
    if inventory is None or sample is None:
        # That NVML does not answer says nothing about how many GPUs there are.
        detail = problem or "NVML does not answer"
        return (*checks, CheckResult(name=DRIVER, ok=False, detail=detail))
    visible = len(inventory.gpus)
    detail = f"{visible} GPUs are visible"
    checks.append(CheckResult(name="gpus-visible", ok=visible > 0, detail=detail))
    checks.append(_answers(inventory, sample))
    if expected is not None:
        checks.append(
            CheckResult(
                name="gpu-count",
                ok=visible == expected,
                detail=f"{visible} GPUs are visible, {expected} are expected",
            )
        )
    checks += _pcie(needs, best, sample)
    if links := _interconnect(needs.nvlinks, inventory, sample):
        checks.append(links)
    return tuple(checks)


def _pcie(needs: GpuNeeds, best: Mapping[str, Best], sample: NodeSample) -> list[CheckResult]:
    """Name the GPUs whose PCIe link is narrower than it must be; nothing where none is."""
    narrow = [
        f"GPU {gpu.index}: {seen.message}"
        for gpu in sample.gpus
        if (seen := narrow_pcie(gpu, needs, best.get(gpu.uuid, Best())))
    ]
    detail = "; ".join(narrow)[:DETAIL_CHARS_MAX]
    return [CheckResult(name=PCIE, ok=False, detail=detail)] if narrow else []


def nvlink_domain(sample: NodeSample | None) -> str:
    """The NVLink domain that all of a node's GPUs are in; empty: none, or not known."""
    return common_domain(gpu.nvlink_domain for gpu in sample.gpus) if sample is not None else ""


def _interconnect(
    nvlinks: int | None, inventory: GpuInventory, sample: NodeSample
) -> CheckResult | None:
    """Compare NVLinks and fabric with what the GPUs must have; None: they need neither."""
    models = {gpu.uuid: gpu.name for gpu in inventory.gpus}
    needed = {
        gpu.uuid: (links_of(models.get(gpu.uuid, ""), len(models)) if nvlinks is None else nvlinks)
        for gpu in sample.gpus
    }
    if not any(needed.values()) and all(gpu.fabric_state is None for gpu in sample.gpus):
        return None
    problems = [each for gpu in sample.gpus for each in _link_problems(gpu, needed[gpu.uuid])]
    if len(domains := {gpu.nvlink_domain for gpu in sample.gpus} - {""}) > 1:
        problems.append(f"the GPUs are in different NVLink domains: {', '.join(sorted(domains))}")
    detail = (
        "; ".join(problems)[:DETAIL_CHARS_MAX] or "all NVLinks are up, and the fabric is healthy"
    )
    return CheckResult(name=INTERCONNECT, ok=not problems, detail=detail)


def _link_problems(gpu: GpuSample, needed: int) -> list[str]:
    problems = []
    if (up := gpu.nvlinks_up or 0) < needed:
        problems.append(f"GPU {gpu.index} has {up} of {needed} NVLinks up")
    if gpu.fabric_state not in (None, FABRIC_COMPLETED):
        problems.append(
            f"GPU {gpu.index} has not joined the NVLink fabric (state {gpu.fabric_state})"
        )
    elif gpu.fabric_status:
        problems.append(
            f"GPU {gpu.index} failed to join the fabric (NVML error {gpu.fabric_status})"
        )
    problems += [
        f"GPU {gpu.index}: fabric {each}" for each in fabric_problems(gpu.fabric_health_mask or 0)
    ]
    return problems


def _answers(inventory: GpuInventory, sample: NodeSample) -> CheckResult:
    name = "gpus-answer"
    failures: Sequence[str] = [each.text for each in (*inventory.failures, *sample.failures)]
    if failures:
        return CheckResult(name=name, ok=False, detail="; ".join(failures)[:DETAIL_CHARS_MAX])
    return CheckResult(name=name, ok=True, detail=f"{len(sample.gpus)} GPUs answer NVML")
