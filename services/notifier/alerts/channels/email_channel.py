"""Email by SMTP; the messages about one alert are a thread of the mail program."""

import asyncio
import hashlib
import smtplib
import ssl
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Annotated, Final, Literal

import msgspec

from schemas.alert_records import Alert
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import FilePath, Setting
from schemas.time_text import utc_text
from services.notifier.alerts.alert_channel import AlertDelivery, ChannelRefusalError
from services.notifier.alerts.channels.vendor_http import shorten
from services.operator_text.safe_text import escape_line
from services.primitives.clock import Clock
from services.primitives.redaction import redacted

SUBJECT_CHARS_MAX: Final = 200
PERMANENT: Final = 500
"""SMTP replies from here on are refusals."""


class EmailChannel:
    """Sends alerts by email."""

    name = "email"
    repeat_seconds = 0.0
    """Mail stays."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel: `{type: email, host: smtp.example.com, sender: …, to: […]}`."""

        host: str
        """The mail server."""
        port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 587
        """Its port."""
        security: Literal["starttls", "tls", "none"] = "starttls"
        """tls: from the first byte, usually on port 465."""
        ca_file: FilePath = ""
        """Certificates of the server's authority; empty: those of the machine."""
        user: str = ""
        """Login at the server; empty: none."""
        password: SecretText = ""
        """The login's password."""
        sender: str
        """Address that alerts are from."""
        to: tuple[str, ...]
        """Addresses that alerts are sent to."""
        timeout: Duration = Duration(8)
        """For each step of the conversation."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            if not self.to:
                raise ValueError("`to` is empty; write [oncall@example.com]")
            for each in (self.sender, *self.to):
                if "@" not in each or not each.isprintable():
                    raise ValueError(f"{each!r} is no address; write name@example.com")
            if self.user and self.security == "none":
                raise ValueError("a password needs `security: starttls` or `tls`")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        del clock
        self._options = options
        self._context = ssl.create_default_context(cafile=options.ca_file or None)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Send one message, in a thread; each step has its time limit there."""
        del receipt
        message = email_message(alert, self._options.sender, self._options.to)
        try:
            return AlertDelivery(answer=await asyncio.to_thread(self._deliver, message))
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            text = _said(error)
            if codes and min(codes) >= PERMANENT:
                raise ChannelRefusalError(text) from error
            raise RuntimeError(text) from error
        except smtplib.SMTPResponseException as error:
            kind = ChannelRefusalError if error.smtp_code >= PERMANENT else RuntimeError
            raise kind(_said(error)) from error

    def _deliver(self, message: EmailMessage) -> str:
        options = self._options
        host, port, timeout = options.host, options.port, float(options.timeout)
        connection: smtplib.SMTP
        if options.security == "tls":
            connection = smtplib.SMTP_SSL(host, port, timeout=timeout, context=self._context)
        else:
            connection = smtplib.SMTP(host, port, timeout=timeout)
        with connection:
            if options.security == "starttls":
                connection.starttls(context=self._context)
            if options.user:
                connection.login(options.user, options.password)
            refused = connection.send_message(message)
        taken = len(options.to) - len(refused)
        return f"{options.host} took it for {taken} of {len(options.to)} addresses"

    async def close(self) -> None:
        """Each message has a connection of its own."""


def email_message(alert: Alert, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """Return the message of an alert, or of its end."""
    state = "resolved" if alert.resolved else alert.severity
    first = f"{_digest(f'{alert.key} {utc_text(alert.began)}')}.thread@navarch"
    message = EmailMessage()
    message["Subject"] = shorten(f"[{state}] {escape_line(alert.title)}", SUBJECT_CHARS_MAX)
    message["From"] = sender
    message["To"] = ", ".join(to)
    message["Date"] = format_datetime(alert.time)
    message["Message-ID"] = f"<{_digest(f'{alert.key} {alert.event}')}@navarch>"
    message["In-Reply-To"] = message["References"] = f"<{first}>"
    message["Auto-Submitted"] = "auto-generated"
    about = {
        "State": state,
        "Pool": alert.pool,
        "Node": alert.node,
        "Fault": alert.fault,
        "Since": utc_text(alert.began),
        "Alert": alert.key,
    }
    lines = [f"{name + ':':8}{value}" for name, value in about.items() if value]
    message.set_content("\n".join([alert.text or alert.title, "", *lines]) + "\n")
    return message


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _said(error: Exception) -> str:
    return escape_line(redacted(str(error))) or type(error).__name__
