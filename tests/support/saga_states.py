"""Makes the state of a saga of which a test states what matters."""

from typing import Any

from services.saga.saga_state import SagaState


def saga_state(**known: Any) -> SagaState:
    """Return a state; what leads to a saga, and the end of its log, are empty."""
    unsaid = {"cause": "", "trace": "", "last_id": "", "sequence": 9}
    return SagaState(**{**unsaid, **known})
