"""Azure's models in `data/azure.json` are applied: whatever they do not know is refused.

The file holds names, types and requirements taken out of the models of Microsoft's SDK
(azure-mgmt-compute 39.0.0 and azure-mgmt-network 33.1.0).
"""

import json
import re
from pathlib import Path
from typing import Any

from starlette.requests import Request

API = json.loads((Path(__file__).parent / "data" / "azure.json").read_text())
TYPES: dict[str, Any] = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}
NEEDED = {"createOrUpdate": {"location"}}
"""What Resource Manager demands of every body and not every model marks."""


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))


METHODS = [
    (name, each["httpMethod"], _pattern(each["path"]), each)
    for name, each in API["methods"].items()
]


class AzureRefusalError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "", retry_after: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": code, "message": message or code}}
        self.headers = {"Retry-After": retry_after} if retry_after else {}


def method_of(request: Request) -> tuple[str, dict[str, str]]:
    """Return the name of the documented method that a request is, and its path's parameters."""
    for name, verb, pattern, about in METHODS:
        found = pattern.fullmatch(request.url.path)
        if found and verb == request.method:
            query = dict(request.query_params)
            if query.pop("api-version", "") != about["api-version"]:
                raise AzureRefusalError(400, "InvalidApiVersionParameter")
            odd = set(query) - set(about["query"]) - {"$skiptoken"}
            if odd:
                raise AzureRefusalError(
                    400, "InvalidParameter", f"unknown parameters {sorted(odd)}"
                )
            listed = name.partition(".")[2] in ("list", "listAll")
            if listed and "$expand" in query and "$filter" not in query:
                raise AzureRefusalError(400, "InvalidParameter", "$expand needs $filter")
            if "$expand" in query and query["$expand"] not in API["expand"]["InstanceViewTypes"]:
                raise AzureRefusalError(400, "InvalidParameter", "$expand")
            return name, found.groupdict()
    raise AzureRefusalError(404, "NotFound", f"no method {request.method} {request.url.path}")


def check_body(method: str, body: Any) -> None:
    wanted = API["methods"][method]["request"]
    if (wanted is None) != (body is None):
        raise AzureRefusalError(400, "InvalidRequestContent", "a body where there is none, or none")
    if wanted is not None:
        _check(body, {"$ref": wanted}, wanted)
        missing = NEEDED[method.partition(".")[2]] - set(body)
        if missing:
            raise AzureRefusalError(400, "LocationRequired", f"{sorted(missing)}")


def _check(value: Any, schema: dict[str, Any], where: str) -> None:
    """Refuse whatever the models do not know, and what is theirs alone to say."""
    if "$ref" in schema:
        if schema["$ref"] not in API["schemas"]:
            raise AzureRefusalError(
                400, "InvalidRequestContent", f"{where}: not known to this server"
            )
        schema = API["schemas"][schema["$ref"]]
    if "enum" in schema:
        if value not in schema["enum"]:
            raise AzureRefusalError(400, "InvalidParameter", f"{where}: none of {schema['enum']}")
        return
    if not isinstance(value, TYPES[schema["type"]]):
        raise AzureRefusalError(
            400, "InvalidRequestFormat", f"{where}: {value!r}: {schema['type']}"
        )
    if schema["type"] == "array":
        for number, each in enumerate(value):
            _check(each, schema["items"], f"{where}[{number}]")
    if schema["type"] == "object":
        _check_object(value, schema, where)


def _check_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> None:
    missing = set(schema.get("required", ())) - set(value)
    if missing:
        raise AzureRefusalError(400, "InvalidParameter", f"{where}: lacks {sorted(missing)}")
    for key, each in value.items():
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if inner is None:
            raise AzureRefusalError(400, "InvalidRequestContent", f"{where}: unknown field {key}")
        _check(each, inner, f"{where}.{key}")


def check_machine(body: dict[str, Any]) -> None:
    """Refuse a machine that breaks the rules that the service has beside its models."""
    properties = body["properties"]
    spot = properties.get("priority") == "Spot"
    if "evictionPolicy" in properties and not spot:
        raise AzureRefusalError(409, "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines")
    sets = {"availabilitySet", "virtualMachineScaleSet"} & set(properties)
    if len(sets) > 1:
        raise AzureRefusalError(400, "InvalidParameter", "two sets")
    if "availabilitySet" in sets and spot:
        raise AzureRefusalError(409, "AzureSpotVMNotSupportedInAvailabilitySet")
    if "availabilitySet" in sets and body.get("zones"):
        raise AzureRefusalError(400, "BadRequest", "availability sets have no zones")
    if "capacityReservation" in properties and spot:
        raise AzureRefusalError(400, "InvalidParameter", "reservations have no spot machines")
    price = properties.get("billingProfile", {}).get("maxPrice", -1)
    if price != -1 and price <= 0:
        raise AzureRefusalError(400, "MaxPriceValueInvalid")
    if not re.fullmatch(r"(Standard|Basic)_\w+", properties["hardwareProfile"]["vmSize"]):
        raise AzureRefusalError(400, "InvalidParameter", "vmSize")
    system = properties["osProfile"]
    if not system["linuxConfiguration"]["ssh"]["publicKeys"]:
        raise AzureRefusalError(400, "InvalidParameter", "authentication")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", system["computerName"]):
        raise AzureRefusalError(400, "InvalidParameter", "computerName")
    if not set(body.get("zones", ())) <= {"1", "2", "3"}:
        raise AzureRefusalError(400, "AvailabilityZoneNotSupported")
