"""Replace: a node that must not stay leaves, and another takes its place.

```
terminate_first:  cordon ─► drain ─► terminate ─► provision ─► bootstrap ─► register ─► admit
voluntary:        provision ─► bootstrap ─► register ─► admit ─► cordon ─► drain ─► terminate
provision_first:  cordon ─► provision ─► bootstrap ─► register ─► admit ─► drain ─► terminate
                               │◄──────── failed: undo provision (terminate the new instance)
launch_ahead:     cordon ─► vacate ─► provision ─► bootstrap ─► register ─► admit ─► drain
                  ─► terminate
```

Where the pool asks for a diagnostic, `reserve ─► check ─► open` precede `admit`: the new node
is cordoned at the workload system, tested, and uncordoned.

Where a spare is ready, `promote` follows `cordon`: the spare takes the node's place, and the
new node is reserved before it is admitted, as the new spare. Once promoted the spare stays in
service, whatever becomes of the rest.

Where its machine is gone, a node is replaced although the workload system refuses to cordon and
drain it, unless the launch needs that system as well.

Where others make the pool's nodes nothing is launched: `cordon ─► drain ─► terminate`, and the
successor is the node that joins.

What unwinding leaves behind: the old node cordoned, because an unhealthy node must not take work
again, and no new instance. A node that was well and in service at the request is uncordoned, unless
it was begun to be terminated or a spare has its place. With terminate_first the old instance may be
gone as well: the pool is then one short, and the reconciler fills the gap with a scale-up,
elsewhere and later if need be.

The order is the pool's choice. terminate_first gives the quota back before it asks again: it
launches once the provider is removing the old instance or, of a fixed number of machines, once that
is free. An instance that does not go is waited for minutes, and becomes a leak; provision_first
(new resource first, old one last) keeps the pool at its size. Once the new node is admitted there
is no way back: a later failure is stuck, for a person to see, and never costs the healthy new node.
Cordon comes first in both orders: from then on nothing new is placed on the unhealthy node. A node
that is well (it has expired, drifted, or is dear) is not cordoned before its successor is in
service: without room for one more it would be out of service for the time of each try.

Where there is no room for one node more, a pool's provision_first becomes terminate_first after
`provision_first_for`.

launch_ahead is no choice of the pool: the cloud has announced that it takes the node soon. The work
is asked to leave at once (vacate, which waits for nothing) while the new node is launched; what is
left of the time until the cloud's deadline is the drain's.
"""

from typing import Final

from schemas.fault_signature import RENEWALS
from schemas.saga_params import SagaParams
from services.saga.definition import Definition, Step
from services.saga.definitions.saga_steps import (
    CORDON,
    TERMINATE,
    VACATE,
    cordon,
    drain,
    launch,
    promoting,
)


def _steps(params: SagaParams) -> tuple[Step, ...]:
    first = (cordon(params), *promoting(params))
    launching = launch(params) if params.new_node else ()
    if params.order == "launch_ahead":
        return (*first, VACATE, *launching, drain(params), TERMINATE)
    if params.order == "provision_first":
        if params.fault_signature in RENEWALS and not params.promotes and launching:
            return (*launching, CORDON, drain(params), TERMINATE)
        return (*first, *launching, drain(params), TERMINATE)
    return (*first, drain(params), TERMINATE, *launching)


REPLACE: Final = Definition(
    kind="replace",
    steps=_steps,
    leaves="the old node cordoned (or gone, where it was terminated first) and no new instance",
    leaves_restored="the old node in service (or gone, where it was terminated first) and no new "
    "instance",
    on_request=True,
    out_of_service=True,
    disrupts=True,
    cordons=True,
    removes_node=True,
    brings_node=True,
    backs_off=True,
)
