"""A WSGI application before another: answers RequestLimitExceeded by a token bucket per action.

`PUT /throttle` with `{"RunInstances": [5, 2]}` allows five at once and two a second for that one
action, and forgets all counts; `GET /throttle` returns `{action: {"answered": n, "refused": n}}`.
As at EC2 a refused request takes no token, and a bucket begins full.
"""

import io
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

CONTROL = "/throttle"
REFUSAL = (
    "<Response><Errors><Error><Code>RequestLimitExceeded</Code>"
    "<Message>Request limit exceeded.</Message></Error></Errors>"
    "<RequestID>00000000-0000-0000-0000-000000000000</RequestID></Response>"
)

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Bucket:
    """Counts the tokens of one action."""

    def __init__(self, burst: float, per_second: float) -> None:
        self.burst, self.per_second = burst, per_second
        self.tokens, self.at = burst, time.monotonic()

    def take(self) -> bool:
        """Take one, if there is one."""
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.per_second)
        self.at = now
        taken = self.tokens >= 1
        self.tokens -= taken
        return taken


class ThrottlingApp:
    """Counts and limits the requests to another application."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.lock = threading.Lock()
        self.buckets: dict[str, Bucket] = {}
        self.counts: defaultdict[str, dict[str, int]] = defaultdict(
            lambda: {"answered": 0, "refused": 0}
        )

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == CONTROL:
            start("200 OK", [("Content-Type", "application/json")])
            return [self.control(environ["REQUEST_METHOD"], body)]
        action = parse_qs(body.decode(errors="replace")).get("Action", [""])[0]
        with self.lock:
            allowed = action not in self.buckets or self.buckets[action].take()
            self.counts[action]["answered" if allowed else "refused"] += 1
        if not allowed:
            start("503 Service Unavailable", [("Content-Type", "text/xml")])
            return [REFUSAL.encode()]
        return self.app(environ | {"wsgi.input": io.BytesIO(body)}, start)

    def control(self, method: str, body: bytes) -> bytes:
        """Set the limits, or return the counts."""
        with self.lock:
            if method == "PUT":
                self.buckets = {action: Bucket(*each) for action, each in json.loads(body).items()}
                self.counts.clear()
            return json.dumps(self.counts).encode()
