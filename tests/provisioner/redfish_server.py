"""A machine's controller as DMTF's specification DSP0266 and schema ComputerSystem have it; strict.

Another path, method, media type or protocol version, an unknown or missing parameter, a reset type
that the system does not list, and a wrong login are refused, with the message IDs of the registry
Base. The power changes some requests after it was ordered to, as a machine's does.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.serving import serving as serving_app

USER, PASSWORD = "admin", "secret-of-the-controller"
RESET_TYPES = (
    *("On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn"),
    *("PushPowerButton", "PowerCycle"),
)
"""The schema's."""
LEADS_TO = {"On": "On", "ForceOn": "On", "ForceOff": "Off", "GracefulShutdown": "Off"}
"""Those that are performed here; any other is accepted and changes nothing."""
LOOKS = 2
"""So many readings show the power as on its way."""


def failure(status: int, message: str, text: str = "") -> Response:
    """Return an error with one message of the registry."""
    info = {
        "@odata.type": "#Message.v1_1_2.Message",
        "MessageId": f"Base.1.18.{message}",
        "Message": text or message,
        "MessageSeverity": "Critical",
        "Resolution": "None.",
    }
    error = {
        "code": "Base.1.18.GeneralError",
        "message": "A general error has occurred. See ExtendedInfo for more information.",
        "@Message.ExtendedInfo": [info],
    }
    return JSONResponse({"error": error}, status_code=status)


class RedfishServer:
    """Serves the strict API of one controller."""

    def __init__(self) -> None:
        self.systems = ["437XR1138R2"]
        self.allowable: tuple[str, ...] = ("On", "ForceOff", "GracefulShutdown", "ForceRestart")
        """Empty: the action does not say."""
        self.power = "On"
        self.hung = False
        """The operating system ignores that it is to shut down."""
        self.resets: list[str] = []
        self.faults: list[tuple[int, str]] = []
        """Status and message of the next answers to the action."""
        self.address = ""
        self._target = ""
        self._looks = 0

    def app(self) -> Starlette:
        """The resources that are used."""
        root = "/redfish/v1"
        return Starlette(
            routes=[
                Route(f"{root}/Systems", self._systems, methods=["GET"]),
                Route(root + "/Systems/{system}", self._system, methods=["GET"]),
                Route(
                    root + "/Systems/{system}/Actions/ComputerSystem.Reset",
                    self._reset,
                    methods=["POST"],
                ),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if request.url.scheme != "https":
            return failure(400, "GeneralError", "logins are accepted over TLS alone")
        if request.headers.get("Authorization") != f"Basic {login}":
            return failure(401, "NoValidSession")
        if request.headers.get("OData-Version", "4.0") != "4.0":
            return failure(412, "PreconditionFailed")
        name = request.path_params.get("system", self.systems[0])
        return None if name in self.systems else failure(404, "ResourceMissingAtURI")

    async def _systems(self, request: Request) -> Response:
        refused = self._refused(request)
        members = [{"@odata.id": f"/redfish/v1/Systems/{each}"} for each in self.systems]
        return refused or JSONResponse(
            {
                "@odata.id": "/redfish/v1/Systems",
                "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection",
                "Name": "Computer System Collection",
                "Members@odata.count": len(members),
                "Members": members,
            }
        )

    async def _system(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        if self._target:
            self._looks += 1
            if self._looks > LOOKS:
                self.power, self._target = self._target, ""
        name = request.path_params["system"]
        action: dict[str, Any] = {
            "target": f"/redfish/v1/Systems/{name}/Actions/ComputerSystem.Reset"
        }
        if self.allowable:
            action["ResetType@Redfish.AllowableValues"] = list(self.allowable)
        return JSONResponse(
            {
                "@odata.id": f"/redfish/v1/Systems/{name}",
                "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem",
                "Id": name,
                "Name": "GPU server",
                "PowerState": f"Powering{self._target}" if self._target else self.power,
                "Status": {"State": "Enabled", "Health": "OK"},
                "Actions": {"#ComputerSystem.Reset": action},
            }
        )

    async def _reset(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        if request.headers.get("Content-Type") != "application/json":
            return failure(415, "HeaderInvalid")
        asked = await request.json()
        if not isinstance(asked, dict) or "ResetType" not in asked:
            return failure(400, "ActionParameterMissing")
        if asked.keys() - {"ResetType", "@Redfish.OperationApplyTime"}:
            return failure(400, "ActionParameterUnknown")
        kind = asked["ResetType"]
        if kind not in (self.allowable or RESET_TYPES):
            return failure(400, "ActionParameterNotSupported")
        if self.faults:
            return failure(*self.faults.pop(0))
        self.resets.append(kind)
        if kind in LEADS_TO and not (kind == "GracefulShutdown" and self.hung):
            self._target, self._looks = LEADS_TO[kind], 0
        return Response(status_code=204)


@asynccontextmanager
async def serving(identity: str) -> AsyncIterator[RedfishServer]:
    """Serve the controller on loopback, with the certificate and key of a file."""
    server = RedfishServer()
    async with serving_app(server.app(), identity=identity) as url:
        server.address = url.removeprefix("https://")
        yield server
