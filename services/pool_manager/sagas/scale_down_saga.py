"""Scale down: one node fewer.

```
cordon ─► drain ─► terminate
```

What unwinding leaves behind: the node as it was; a cordon that was set is taken back, because the
node is healthy and may go on working. Once begun to be terminated it stays cordoned.
"""

from typing import Final

from services.pool_manager.sagas.saga_steps import CORDON_UNDONE, DRAIN, TERMINATE
from services.saga.definition import Definition

SCALE_DOWN: Final = Definition(
    kind="scale-down",
    # A spare is cordoned already, and must stay so where this is unwound.
    steps=lambda params: (DRAIN, TERMINATE) if params.spare else (CORDON_UNDONE, DRAIN, TERMINATE),
    leaves="the node in service",
    cordons=True,
    removes_node=True,
    resizes=True,
    backs_off=True,
)
