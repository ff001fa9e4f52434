"""Scale up: one more node.

```
provision ─► bootstrap ─► register ─► admit
   │◄──────── failed: undo provision (terminate the instance)
```

With a diagnostic: register ─► reserve ─► check ─► open ─► admit, so that the node has no work until
it has passed.

What unwinding leaves behind: nothing. The reconciler sees the gap and tries again, after a
wait that grows with each failure.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import launch

SCALE_UP: Final = Definition(
    kind="scale-up", steps=launch, leaves="nothing", brings_node=True, resizes=True, backs_off=True
)
