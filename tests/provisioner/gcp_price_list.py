"""Cloud Billing's list of SKUs as Google's discovery document has it, and strict.

The document (names and types, in `data/cloudbilling.v1.json`) says which parameters and fields
there are; anything else is refused, and so is a token for other APIs. Entries have descriptions,
units and prices as in the public list of 2026.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.provisioner.google_logins import PRICES_SCOPE, GoogleLogins

API = json.loads((Path(__file__).parent / "data" / "cloudbilling.v1.json").read_text())
METHOD: Final = API["methods"]["services.skus.list"]
COMPUTE_ENGINE: Final = "6F81-5844-456A"
PAGE_MAX = 7
"""Small, so that there are several."""
US, EU = "us-central1", "europe-west4"


def sku(
    description: str, dollars: float, unit: str = "h", usage: str = "OnDemand", region: str = US
) -> dict[str, Any]:
    """Return one entry of the price list."""
    units, nanos = divmod(round(dollars * 1e9), 10**9)
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "name": f"services/{COMPUTE_ENGINE}/skus/0000-0000-0000",
        "skuId": "0000-0000-0000",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": "GPU" if "GPU" in description else "CPU",
            "usageType": usage,
        },
        "serviceRegions": [region],
        "pricingInfo": [{"pricingExpression": expression, "currencyConversionRate": 1}],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": [region]},
    }


SPOT: Final = "Preemptible"
RAM: Final = "GiBy.h"
SKUS = [
    sku("A2 Instance Core running in Americas", 0.031611),
    sku("A2 Instance Ram running in Americas", 0.004237, RAM),
    sku("Nvidia Tesla A100 GPU running in Americas", 2.933908),
    sku("Spot Preemptible A2 Instance Core running in Americas", 0.01265, usage=SPOT),
    sku("Spot Preemptible A2 Instance Ram running in Americas", 0.0017, RAM, SPOT),
    sku(
        "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas",
        1.76,
        "h",
        SPOT,
    ),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.93),
    sku(
        "Commitment v1: Nvidia Tesla A100 GPU running in Americas for 1 Year",
        1.84,
        usage="Commit1Yr",
    ),
    sku("A3 Instance Core running in Americas", 0.029),
    sku("A3 Instance Core running in Americas", 0.0293),
    sku("A3 Instance Ram running in Americas", 0.00255, RAM),
    sku("Nvidia H100 80GB GPU running in Americas", 9.79655),
    sku("Reserved Nvidia H100 80GB GPU in Americas in Calendar Mode", 4.8),
    sku("Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas", 4.4),
    sku("A3 Instance Core running in Netherlands", 0.0322, region=EU),
    sku("A3 Instance Ram running in Netherlands", 0.0028, RAM, region=EU),
    sku("A3Plus Instance Core running in Americas", 0.026924),
    sku("A3Plus Instance Ram running in Americas", 0.002344, RAM),
    sku("Nvidia H100 80GB Plus GPU running in Americas", 10.344276),
    sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16.11),
    sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4.9542),
    sku("A2 Instance Core running in Americas", 999.0, "mo"),
    sku("N1 Predefined Instance Core running in Americas", 0.031611),
    sku("N1 Predefined Instance Ram running in Americas", 0.004237, RAM),
]


class GcpPriceList:
    """Answers requests of the method `services.skus.list`."""

    def __init__(self, logins: GoogleLogins) -> None:
        self.logins = logins
        self.skus = SKUS
        self.disabled = False
        """The API is not enabled in the caller's project."""
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: Request) -> Response:
        """Answer one page of the list."""
        query = dict(request.query_params)
        self.asked.append(query)
        if not self.logins.accepts(request, PRICES_SCOPE):
            return _error(401, "UNAUTHENTICATED", "no token for this API")
        if self.disabled:
            return _error(
                403, "PERMISSION_DENIED", "Cloud Billing API has not been used in project"
            )
        parent = f"services/{request.path_params['service']}"
        known = set(METHOD["parameters"]) | set(API["common_parameters"])
        good = re.fullmatch(METHOD["parameters"]["parent"]["pattern"], parent)
        if set(query) - known or not good or parent != f"services/{COMPUTE_ENGINE}":
            return _error(400, "INVALID_ARGUMENT", f"{parent} {query}")
        if query.get("currencyCode", "USD") != "USD" or not 1 <= int(query["pageSize"]) <= 5000:
            return _error(400, "INVALID_ARGUMENT", str(query))
        first = int(query.get("pageToken", 0))
        last = first + PAGE_MAX
        more = str(last) if last < len(self.skus) else ""
        return JSONResponse({"skus": self.skus[first:last], "nextPageToken": more})


def _error(status: int, name: str, text: str) -> Response:
    return JSONResponse({"error": {"code": status, "message": text, "status": name}}, status)
