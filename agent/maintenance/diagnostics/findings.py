"""What a test is asked, what its tool printed, and what that says: values. Pure."""

from dataclasses import dataclass, field

from schemas.node_events import CheckResult, GpuIdentity, Metric

DETAIL_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """How a test is to be run."""

    level: int = 1
    seconds: int = 60
    gbps_min: float = 0.0
    gpus: tuple[GpuIdentity, ...] = ()
    """Those that NVML shows."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a tool gave."""

    code: int
    text: str = ""
    errors: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One test's outcome."""

    name: str
    ok: bool
    detail: str
    gpus: tuple[int, ...] = ()
    """Indexes of the GPUs that failed, where it is known."""
    ran: bool = True
    """False: the tool could not do its work, which says nothing of the hardware."""
    metrics: dict[str, Metric] = field(default_factory=dict)

    def result(self) -> CheckResult:
        """Say it as the bus does."""
        return CheckResult(name=self.name, ok=self.ok, detail=self.detail[:DETAIL_CHARS_MAX])


def not_run(name: str, output: Output) -> Finding:
    """Say that a tool could not do its work, in its own first words."""
    return Finding(name, ok=False, detail=f"could not be run: {first_words(output)}", ran=False)


def first_words(output: Output) -> str:
    """Take the first line that says something, from the errors before the rest."""
    for text in (output.errors, output.text):
        for line in text.splitlines():
            if words := "".join(c if c.isprintable() else " " for c in line).strip():
                return words[:DETAIL_CHARS_MAX]
    return f"exit status {output.code}, and not a word"
