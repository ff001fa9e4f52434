"""Reads the records of a fleet's plugins, and takes plugins out."""

import asyncio

from schemas.permissions import PLUGIN_SWITCH, SERVICES
from schemas.plugin_records import PluginHealth, PluginSwitch, PluginSwitchRecord
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.query_answers import decode_answer
from services.runtime.failure_query import plugin_answers


async def plugin_records(fleet: FleetClient) -> list[PluginHealth]:
    """Return the records of all plugins, of each replica that answers."""
    answers = await asyncio.gather(*(plugin_answers(fleet.bus, each) for each in SERVICES))
    return [
        health
        for service, datas in zip(SERVICES, answers, strict=True)
        for data in datas
        for health in decode_answer(list[PluginHealth], data, "plugins", service)
    ]


async def switch_plugin(fleet: FleetClient, name: str, *, disabled: bool) -> PluginSwitchRecord:
    """Have every service take the plugins of a name out, or begin with them again."""
    data = await fleet.order(PLUGIN_SWITCH, PluginSwitch(name=name, disabled=disabled))
    return decode_answer(PluginSwitchRecord, data, PLUGIN_SWITCH)
