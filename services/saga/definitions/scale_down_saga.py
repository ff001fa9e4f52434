"""Scale down: one node fewer.

```
cordon ─► drain ─► terminate
```

What unwinding leaves behind: the node as it was. A cordon that was set is taken back, because the
node may go on working; one that was there before is another's. Once begun to be terminated it stays
cordoned.
"""

from typing import Final

from schemas.saga_params import SagaParams
from services.saga.definition import Definition, Step
from services.saga.definitions.saga_steps import DRAIN, TERMINATE, cordon_undone


def _steps(params: SagaParams) -> tuple[Step, ...]:
    # A spare is cordoned already, and must stay so where this is unwound.
    return (DRAIN, TERMINATE) if params.spare else (cordon_undone(params), DRAIN, TERMINATE)


SCALE_DOWN: Final = Definition(
    kind="scale-down",
    steps=_steps,
    leaves="the node in service",
    keeps_cordon=True,
    cordons=True,
    removes_node=True,
    resizes=True,
    backs_off=True,
)
