"""AWS's price list, which moto lacks: a WSGI application before another, and strict.

The SDK's own model says which parameters GetProducts has; anything else is refused. A price depends
on every attribute that the request must name. Types that begin with `denied` are refused.
"""

import io
import json
from collections.abc import Iterable
from typing import Any, Final

import botocore.session
from botocore.validate import ParamValidator

from tests.provisioner.throttling_app import App

TARGET: Final = "AWSPriceListService.GetProducts"
DOLLARS: Final = {("us-east-1", "p5.48xlarge"): 55.04, ("eu-west-1", "p5.48xlarge"): 61.5}
NEEDED: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
HEADERS: Final = [("Content-Type", "application/x-amz-json-1.1")]


class PriceListApp:
    """Answers GetProducts; all else is the other application's."""

    def __init__(self, app: App) -> None:
        self.app = app
        model = botocore.session.get_session().get_service_model("pricing")
        self.wanted = model.operation_model("GetProducts").input_shape

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer a request."""
        if environ.get("HTTP_X_AMZ_TARGET") != TARGET:
            return self.app(environ, start)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        status, answer = self.answer(json.loads(body))
        start(status, HEADERS)
        return [json.dumps(answer).encode()]

    def answer(self, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the HTTP status line and the body for a request."""
        report = ParamValidator().validate(asked, self.wanted)
        fields = {each["Field"]: each["Value"] for each in asked.get("Filters", ())}
        if report.has_errors() or asked["ServiceCode"] != "AmazonEC2":
            return "400 Bad Request", _error("InvalidParameterException", report.generate_report())
        kind, region = fields.pop("instanceType", ""), fields.pop("regionCode", "")
        if kind.startswith("denied"):
            return "400 Bad Request", _error("AccessDeniedException", "pricing:GetProducts")
        if fields != NEEDED:
            return "400 Bad Request", _error("InvalidParameterException", f"ambiguous: {fields}")
        dollars = DOLLARS.get((region, kind))
        prices = [] if dollars is None else [_product(kind, dollars), _product(kind, 0.0)]
        return "200 OK", {"FormatVersion": "aws_v1", "PriceList": prices}


def _product(kind: str, dollars: float) -> str:
    hours = {"unit": "Hrs", "pricePerUnit": {"USD": f"{dollars:.10f}"}}
    other = {"unit": "Quantity", "pricePerUnit": {"USD": "9999.0"}}
    term = {"sku": "S", "priceDimensions": {"S.T.H": hours, "S.T.Q": other}}
    product = {"productFamily": "Compute Instance", "attributes": {"instanceType": kind}}
    return json.dumps({"product": product, "terms": {"OnDemand": {"S.T": term}}})


def _error(code: str, text: str) -> dict[str, str]:
    return {"__type": code, "message": text}
