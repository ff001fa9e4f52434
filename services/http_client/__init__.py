"""The HTTP API from Python: `AsyncNavarch` and `Navarch`; docs/http-api.md has an example."""

from services.http_client.async_client import AsyncNavarch as AsyncNavarch
from services.http_client.gateway_errors import ChangeRefusedError as ChangeRefusedError
from services.http_client.gateway_errors import EventsResetError as EventsResetError
from services.http_client.gateway_errors import ForbiddenError as ForbiddenError
from services.http_client.gateway_errors import GatewayError as GatewayError
from services.http_client.gateway_errors import NoAnswerError as NoAnswerError
from services.http_client.gateway_errors import NotFoundError as NotFoundError
from services.http_client.gateway_errors import UnansweredChangeError as UnansweredChangeError
from services.http_client.gateway_errors import UnauthenticatedError as UnauthenticatedError
from services.http_client.sync_client import Navarch as Navarch
