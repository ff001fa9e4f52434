"""What is wrong with the connections at the moment: cut, lossy, slow. Set by the campaign."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class NetworkFaults:
    """The state of every connection."""

    cut: dict[str, int] = field(default_factory=dict)
    """Member -> how many cuts lie over it now; `*` is everybody."""
    lost_requests: dict[str, float] = field(default_factory=dict)
    """Member -> share of its calls that never arrive."""
    lost_answers: dict[str, float] = field(default_factory=dict)
    """Member -> share of its calls whose answer never arrives."""
    lost_acks: dict[str, float] = field(default_factory=dict)
    """Member -> share of its acknowledgements that never arrive."""
    slow: dict[str, float] = field(default_factory=dict)
    """Member -> the most seconds that its calls may take on top."""

    def is_cut(self, name: str) -> bool:
        """Whether a member has no connection."""
        return bool(self.cut and (self.cut.get(name) or self.cut.get("*")))

    def clear(self) -> None:
        """Fine weather."""
        for each in (
            self.cut,
            self.lost_requests,
            self.lost_answers,
            self.lost_acks,
            self.slow,
        ):
            each.clear()
