"""Every tool: its name, its description, its arguments, and whether it changes the fleet. Pure."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from services.mcp_server import change_tools, query_tools
from services.mcp_server.tool_arguments import (
    AnyName,
    Confirmation,
    EventSelection,
    NoArguments,
    NodeName,
    NodeSelection,
    OfferingSelection,
    PlannedChange,
    PoolSelection,
    ReportPeriod,
    TimelineSelection,
)


class FleetTool(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one tool and the function that performs it."""

    name: str
    arguments: type[NoArguments]
    call: Callable[[Any, Any], Awaitable[Any]]
    changes: bool = False
    """Whether it changes the fleet."""

    @property
    def description(self) -> str:
        """Return the tool's description: its function's docstring."""
        lines = (self.call.__doc__ or "").strip().splitlines()
        return " ".join(filter(None, map(str.strip, lines)))

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the tool's arguments."""
        return arguments_schema(self.arguments)


TOOLS: Final = (
    FleetTool(name="list_nodes", arguments=NodeSelection, call=query_tools.list_nodes),
    FleetTool(name="get_node", arguments=NodeName, call=query_tools.get_node),
    FleetTool(name="list_pools", arguments=NoArguments, call=query_tools.list_pools),
    FleetTool(name="list_stops", arguments=NoArguments, call=query_tools.list_stops),
    FleetTool(name="list_sagas", arguments=PoolSelection, call=query_tools.list_sagas),
    FleetTool(name="why", arguments=AnyName, call=query_tools.explain),
    FleetTool(name="timeline", arguments=TimelineSelection, call=query_tools.timeline),
    FleetTool(name="events", arguments=EventSelection, call=query_tools.events),
    FleetTool(name="list_offerings", arguments=OfferingSelection, call=query_tools.list_offerings),
    FleetTool(name="report", arguments=ReportPeriod, call=query_tools.report),
    FleetTool(name="cost", arguments=ReportPeriod, call=query_tools.cost),
    FleetTool(name="list_alerts", arguments=PoolSelection, call=query_tools.list_alerts),
    FleetTool(name="plan_change", arguments=PlannedChange, call=change_tools.plan_change),
    FleetTool(
        name="confirm_change",
        arguments=Confirmation,
        call=change_tools.confirm_change,
        changes=True,
    ),
)


def arguments_schema(kind: type[NoArguments]) -> dict[str, Any]:
    """A JSON schema whose root is an object, as the protocol demands."""
    _, found = msgspec.json.schema_components([kind])
    schema: dict[str, Any] = found[kind.__name__]
    return {key: value for key, value in schema.items() if key != "title"}


def tool_rows() -> str:
    """Return the table of docs/mcp.md."""
    rows = [
        f"| `{each.name}` | {', '.join(f'`{name}`' for name in each.arguments.__struct_fields__)} "
        f"| {each.description} |"
        for each in TOOLS
    ]
    return "\n".join(("| tool | arguments | what it does |", "|---|---|---|", *rows)).replace(
        "|  |", "| |"
    )
