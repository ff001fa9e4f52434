"""An order lets a provider be asked to terminate an instance, and says who decided on it."""

from typing import Literal

import msgspec

from schemas.proposed_removals import RemovalProposal
from schemas.value_limits import Identifier, Int, Name, UtcTime

AuthorityKind = Literal["saga", "launch", "operator", "proof"]
"""saga: a step that the pool-manager opened through its gates. launch: the saga that launched it,
and undoes or gives that up. operator: a command. proof: the pool-manager's answer that no work can
be on it."""


class Authority(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An authority says who decided that an instance is terminated."""

    kind: AuthorityKind
    saga: str = ""
    """Of `saga` and `launch`."""
    step: str = ""
    revision: Int = 0
    """Of the saga's log when the order was first used; 0: not known."""
    request: str = ""
    """The operator's command, or the ID of the proposal that was answered."""
    by: Name = ""
    """The operator."""
    at: UtcTime | None = None
    """When it was decided; None: by an earlier release."""
    proof: RemovalProposal | None = None
    """Of `proof`: what was proposed. It is asked again before each call, until one is accepted."""
    accepted_at: UtcTime | None = None
    """Of `proof`: when the provider accepted it. Before that, a sign of life takes it back."""

    def __str__(self) -> str:
        """Write `saga replace-web-1`, `operator ada`."""
        about = self.saga or self.by or self.request
        return f"{self.kind} {about}" if about else self.kind


class TerminationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The one value with which a provider is asked to terminate."""

    provider: str
    provider_ids: tuple[Identifier, ...]
    """These, and no other of the same name."""
    key: str
    """Of the instance's record."""
    node: str
    authority: Authority


class SurplusInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance beside that of a record, which was ordered to go."""

    provider: str
    provider_id: Identifier
    authority: Authority
