"""Cordon GPUs: single GPUs of a node get no new work, and the node stays in service.

```
cordon-gpus
```

It gives the workload system all of the node's GPUs that are meant; none lifts every such cordon.

What unwinding leaves behind: the order carried out or not. The node is quarantined as a whole then;
an order that lifts the cordon is repeated.
"""

from typing import Final

from services.saga.definition import Definition
from services.saga.definitions.saga_steps import CORDON_GPUS

CORDON_NODE_GPUS: Final = Definition(
    kind="cordon-gpus",
    steps=lambda _: (CORDON_GPUS,),
    leaves="the GPUs cordoned or not",
)
