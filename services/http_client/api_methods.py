"""Declares the methods of both clients, each once. Of `AsyncNavarch` they are awaited."""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from services.http_client import gateway_calls, order_calls
from services.http_client.api_call import ApiCall, ApiStream, ItemPage

P = ParamSpec("P")
T = TypeVar("T")


class AwaitedClient:
    """A client whose methods are awaited."""


class WaitingClient:
    """A client whose methods wait."""


class _Method(Generic[P]):
    """Does with a call what the client does, as a method with the call's parameters."""

    does: str
    """The client's method."""

    def __init__(self, make: Callable[P, Any]) -> None:
        does = self.does

        def method(self: Any, /, *args: P.args, **given: P.kwargs) -> Any:
            return getattr(self, does)(make(*args, **given))

        me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        own = inspect.signature(make)
        found: Any = method
        found.__signature__ = own.replace(parameters=[me, *own.parameters.values()])
        found.__name__, found.__doc__ = make.__name__, make.__doc__
        self._method = found

    def __get__(self, fleet: Any, owner: Any = None) -> Any:
        return self._method if fleet is None else MethodType(self._method, fleet)


class _Answered(_Method[P], Generic[P, T]):
    """Sends a call, and returns its answer."""

    does = "send"

    def __init__(self, make: Callable[P, ApiCall[T]]) -> None:
        super().__init__(make)

    @overload
    def __get__(
        self, fleet: AwaitedClient, owner: Any = None
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, fleet: WaitingClient, owner: Any = None) -> Callable[P, T]: ...
    def __get__(self, fleet: Any, owner: Any = None) -> Any:
        return super().__get__(fleet, owner)


class _Iterated(_Method[P], Generic[P, T]):
    """Returns items, each when it is wanted."""

    @overload
    def __get__(
        self, fleet: AwaitedClient, owner: Any = None
    ) -> Callable[P, AsyncGenerator[T, None]]: ...
    @overload
    def __get__(self, fleet: WaitingClient, owner: Any = None) -> Callable[P, Iterator[T]]: ...
    def __get__(self, fleet: Any, owner: Any = None) -> Any:
        return super().__get__(fleet, owner)


class _Paged(_Iterated[P, T]):
    does = "pages"

    def __init__(self, make: Callable[P, ApiCall[ItemPage[T]]]) -> None:
        super().__init__(make)


class _Followed(_Iterated[P, T]):
    does = "follow"

    def __init__(self, make: Callable[P, ApiStream[T]]) -> None:
        super().__init__(make)


class ApiMethods:
    """Has a method for every operation of the API."""

    list_nodes = _Answered(gateway_calls.list_nodes)
    get_node = _Answered(gateway_calls.get_node)
    get_node_why = _Answered(gateway_calls.get_node_why)
    get_node_timeline = _Answered(gateway_calls.get_node_timeline)
    get_node_samples = _Answered(gateway_calls.get_node_samples)
    get_node_evidence = _Answered(gateway_calls.get_node_evidence)
    list_evidence = _Answered(gateway_calls.list_evidence)
    get_report = _Answered(gateway_calls.get_report)
    list_use = _Answered(gateway_calls.list_use)
    list_hardware = _Answered(gateway_calls.list_hardware)
    list_instances = _Answered(gateway_calls.list_instances)
    list_pools = _Answered(gateway_calls.list_pools)
    get_pool = _Answered(gateway_calls.get_pool)
    get_pool_status = _Answered(gateway_calls.get_pool_status)
    get_pool_why = _Answered(gateway_calls.get_pool_why)
    get_pool_history = _Answered(gateway_calls.get_pool_history)
    get_pool_utilization = _Answered(gateway_calls.get_pool_utilization)
    list_sagas = _Answered(gateway_calls.list_sagas)
    list_saga_history = _Answered(gateway_calls.list_saga_history)
    get_saga = _Answered(gateway_calls.get_saga)
    get_saga_why = _Answered(gateway_calls.get_saga_why)
    list_offerings = _Answered(gateway_calls.list_offerings)
    list_incidents = _Answered(gateway_calls.list_incidents)
    get_status = _Answered(gateway_calls.get_status)
    get_budget = _Answered(gateway_calls.get_budget)
    get_stops = _Answered(gateway_calls.get_stops)
    get_caller = _Answered(gateway_calls.get_caller)
    get_policy = _Answered(gateway_calls.get_policy)
    list_events = _Answered(gateway_calls.list_events)
    list_newest_events = _Answered(order_calls.list_newest_events)
    get_cost = _Answered(order_calls.get_cost)
    list_alerts = _Answered(order_calls.list_alerts)
    get_job_nodes = _Answered(order_calls.get_job_nodes)
    get_node_logs = _Answered(order_calls.get_node_logs)
    get_service_logs = _Answered(order_calls.get_service_logs)
    plan_sweep = _Answered(order_calls.plan_sweep)

    cordon_node = _Answered(gateway_calls.cordon_node)
    uncordon_node = _Answered(gateway_calls.uncordon_node)
    release_node = _Answered(gateway_calls.release_node)
    drain_node = _Answered(gateway_calls.drain_node)
    replace_node = _Answered(gateway_calls.replace_node)
    reset_gpu_node = _Answered(gateway_calls.reset_gpu_node)
    reboot_node = _Answered(gateway_calls.reboot_node)
    terminate_node = _Answered(gateway_calls.terminate_node)
    dry_run_node = _Answered(gateway_calls.dry_run_node)
    hold_node = _Answered(gateway_calls.hold_node)
    diagnose_node = _Answered(gateway_calls.diagnose_node)
    scale_pool = _Answered(gateway_calls.scale_pool)
    open_breaker = _Answered(gateway_calls.open_breaker)
    close_breaker = _Answered(gateway_calls.close_breaker)
    up_pool = _Answered(gateway_calls.up_pool)
    down_pool = _Answered(gateway_calls.down_pool)
    cancel_saga = _Answered(gateway_calls.cancel_saga)
    retry_saga = _Answered(gateway_calls.retry_saga)
    proceed_saga = _Answered(gateway_calls.proceed_saga)

    acknowledge_alert = _Answered(order_calls.acknowledge_alert)
    update_alert = _Answered(order_calls.update_alert)
    add_hardware = _Answered(order_calls.add_hardware)
    forget_hardware = _Answered(order_calls.forget_hardware)
    accept_identity = _Answered(order_calls.accept_identity)
    drill_node = _Answered(order_calls.drill_node)
    readmit_node = _Answered(order_calls.readmit_node)
    forget_node = _Answered(order_calls.forget_node)
    plan_forget_node = _Answered(order_calls.plan_forget_node)
    sweep_instances = _Answered(order_calls.sweep_instances)
    check_workload = _Answered(order_calls.check_workload)
    report_work_done = _Answered(order_calls.report_work_done)
    stop_automation = _Answered(order_calls.stop_automation)
    resume_automation = _Answered(order_calls.resume_automation)

    each_node = _Paged(gateway_calls.list_nodes)
    each_instance = _Paged(gateway_calls.list_instances)
    each_event = _Paged(gateway_calls.list_events)

    follow_events = _Followed(gateway_calls.follow_events)
    follow_saga = _Followed(gateway_calls.follow_saga)
    follow_pool = _Followed(gateway_calls.follow_pool)
