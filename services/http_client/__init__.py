"""The HTTP API from Python: `AsyncNavarch` and `Navarch`; docs/http-api.md has an example."""

from services.http_client.api_call import ChangeRefusedError as ChangeRefusedError
from services.http_client.api_call import EventsResetError as EventsResetError
from services.http_client.api_call import ForbiddenError as ForbiddenError
from services.http_client.api_call import GatewayError as GatewayError
from services.http_client.api_call import NoAnswerError as NoAnswerError
from services.http_client.api_call import NotFoundError as NotFoundError
from services.http_client.api_call import UnansweredChangeError as UnansweredChangeError
from services.http_client.api_call import UnauthenticatedError as UnauthenticatedError
from services.http_client.api_clients import AsyncNavarch as AsyncNavarch
from services.http_client.api_clients import Navarch as Navarch
