"""Azure's public price list, as strict as the rest: an unknown parameter or a token is refused."""

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

SIZE = r"armSkuName eq '\w+'"
FILTER = re.compile(
    "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' "
    rf"and armRegionName eq 'eastus' and \({SIZE}(?: or {SIZE})*\)"
)
PAGE_MAX = 3
H100, A100 = "Standard_ND96isr_H100_v5", "Standard_NC24ads_A100_v4"


def meter(size: str, dollars: float, sku: str = "", **changes: Any) -> dict[str, Any]:
    """Return one entry of the price list."""
    return {
        "currencyCode": "USD",
        "retailPrice": dollars,
        "armRegionName": "eastus",
        "productName": "Virtual Machines NDsr H100 v5 Series",
        "skuName": f"{size.removeprefix('Standard_')}{sku}",
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": size,
    } | changes


METERS = [
    meter(H100, 98.32),
    meter(H100, 39.33, " Spot"),
    meter(H100, 19.66, " Low Priority"),
    meter(H100, 102.74, productName="Virtual Machines NDsr H100 v5 Series Windows"),
    meter(H100, 9999.0, unitOfMeasure="1 Month"),
    meter(H100, 0.0),
    meter(A100, 3.67),
    meter(A100, 3.5, isPrimaryMeterRegion=False),
]


async def answer(request: Request) -> Response:
    """A page of what is asked for."""
    query = dict(request.query_params)
    skip = int(query.pop("$skip", 0))
    odd = set(query) - {"api-version", "currencyCode", "$filter"}
    version = query.get("api-version") == "2023-01-01-preview"
    known = "Authorization" in request.headers
    if odd or known or not version or not FILTER.fullmatch(query.get("$filter", "")):
        return JSONResponse({"Error": {"Code": "BadRequest", "Message": query}}, 400)
    shown = [each for each in METERS if f"'{each['armSkuName']}'" in query["$filter"]]
    page: dict[str, Any] = {"BillingCurrency": "USD", "Items": shown[skip : skip + PAGE_MAX]}
    page["NextPageLink"] = None
    if len(shown) > skip + PAGE_MAX:
        more = request.url.include_query_params(**{"$skip": skip + PAGE_MAX})
        page["NextPageLink"] = str(more)
    return JSONResponse(page)
