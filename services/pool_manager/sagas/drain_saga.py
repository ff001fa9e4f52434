"""Drain, cordon, uncordon: what a person asks of one node, without taking it away.

```
drain:     cordon ─► drain
cordon:    cordon
uncordon:  uncordon
```

What unwinding leaves behind: for drain and cordon, the node uncordoned as it was; for uncordon, the
node still cordoned.
"""

from typing import Final

from services.pool_manager.sagas.saga_steps import CORDON_UNDONE, DRAIN, UNCORDON
from services.saga.definition import Definition

DRAIN_NODE: Final = Definition(
    kind="drain",
    steps=lambda _: (CORDON_UNDONE, DRAIN),
    leaves="the node in service",
    on_request=True,
    out_of_service=True,
    disrupts=True,
    cordons=True,
)
CORDON_NODE: Final = Definition(
    kind="cordon",
    steps=lambda _: (CORDON_UNDONE,),
    leaves="the node in service",
    on_request=True,
    out_of_service=True,
    cordons=True,
)
UNCORDON_NODE: Final = Definition(
    kind="uncordon", steps=lambda _: (UNCORDON,), leaves="the node cordoned", on_request=True
)
