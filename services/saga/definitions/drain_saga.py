"""Drain, cordon, uncordon: what a person asks of one node, without taking it away.

```
drain:     cordon ─► drain
cordon:    cordon
uncordon:  uncordon
```

What unwinding leaves behind: for drain and cordon, the node as it was; for uncordon, the node still
cordoned.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import DRAIN, UNCORDON, cordon_undone

DRAIN_NODE: Final = Definition(
    kind="drain",
    steps=lambda params: (cordon_undone(params), DRAIN),
    leaves="the node in service",
    keeps_cordon=True,
    on_request=True,
    out_of_service=True,
    disrupts=True,
    cordons=True,
)
CORDON_NODE: Final = Definition(
    kind="cordon",
    steps=lambda params: (cordon_undone(params),),
    leaves="the node in service",
    keeps_cordon=True,
    on_request=True,
    out_of_service=True,
    cordons=True,
)
UNCORDON_NODE: Final = Definition(
    kind="uncordon", steps=lambda _: (UNCORDON,), leaves="the node cordoned", on_request=True
)
