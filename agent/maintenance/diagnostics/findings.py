"""Describes a diagnostic: its parameters, its tool's output and its result. Pure."""

from dataclasses import dataclass

from agent.observations import DETAIL_CHARS_MAX, CheckFinding
from schemas.node_events import GpuIdentity


@dataclass(frozen=True, slots=True)
class CheckParameters:
    """Holds the parameters of a test."""

    level: int = 1
    seconds: int = 60
    gbps_min: float = 0.0
    gpus: tuple[GpuIdentity, ...] = ()
    """The GPUs that NVML lists."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Holds the output of a tool and its exit status."""

    code: int
    text: str = ""
    errors: str = ""


def not_run(name: str, output: ToolOutput) -> CheckFinding:
    """A result for a tool that could not run, with its first line of output."""
    return CheckFinding(
        name, ok=False, detail=f"could not be run: {first_words(output)}", ran=False
    )


def first_words(output: ToolOutput) -> str:
    """Return the first non-empty line of output, errors first."""
    for text in (output.errors, output.text):
        for line in text.splitlines():
            if words := "".join(c if c.isprintable() else " " for c in line).strip():
                return words[:DETAIL_CHARS_MAX]
    return f"exit status {output.code}, without output"
