"""Boot checks: whether the host is fit to be a node. Pure."""

from collections.abc import Sequence

from agent.sources.nvml import GpuInventory, NodeSample
from schemas.node_events import CheckResult


def boot_checks(
    expected: int | None,
    inventory: GpuInventory | None,
    sample: NodeSample | None,
    problem: str,
    kernel_log_problem: str,
) -> tuple[CheckResult, ...]:
    """Check what NVML and the kernel log returned; None: not available."""
    checks = [
        CheckResult(
            name="kernel-log",
            ok=not kernel_log_problem,
            detail=kernel_log_problem or "the kernel log is followed",
        )
    ]
    if expected == 0:
        return (*checks, CheckResult(name="gpus-visible", ok=True, detail="no GPUs are expected"))
    visible = len(inventory.gpus) if inventory is not None else 0
    checks.append(
        CheckResult(
            name="gpus-visible",
            ok=visible > 0,
            detail=f"{visible} GPUs are visible" if inventory is not None else problem,
        )
    )
    checks.append(_answers(inventory, sample, problem))
    if expected is not None:
        checks.append(
            CheckResult(
                name="gpu-count",
                ok=visible == expected,
                detail=f"{visible} GPUs are visible, {expected} are expected",
            )
        )
    return tuple(checks)


def _answers(
    inventory: GpuInventory | None, sample: NodeSample | None, problem: str
) -> CheckResult:
    name = "gpus-answer"
    if inventory is None or sample is None:
        return CheckResult(name=name, ok=False, detail=problem or "NVML does not answer")
    failures: Sequence[str] = [each.text for each in (*inventory.failures, *sample.failures)]
    if failures:
        return CheckResult(name=name, ok=False, detail="; ".join(failures)[:1000])
    return CheckResult(name=name, ok=True, detail=f"{len(sample.gpus)} GPUs answer NVML")
