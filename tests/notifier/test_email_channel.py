"""Alerts by mail: threads, refusals, encryption, on an SMTP server of the test's own."""

import asyncio
import smtplib
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from services.cli.certificates import new_authority, new_certificate, new_key
from services.notifier.alerts.alert_channel import ChannelRefusalError
from services.notifier.alerts.channels.email_channel import EmailChannel
from tests.notifier.test_alert_channels import CLOCK, ENDED, OPENED, SECRET


@asynccontextmanager
async def mail_server(
    refusal: bytes = b"", tls: ssl.SSLContext | None = None, *, starts_tls: bool = False
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """An SMTP server that keeps what it is sent, and the login; with TLS from the first byte."""
    mails: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 test\r\n")
        offers, secret = starts_tls, tls is not None and not starts_tls
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"DATA":
                writer.write(b"354 go on\r\n")
                mails.append(await reader.readuntil(b"\r\n.\r\n"))
            if verb == b"STAR" and tls is not None:
                writer.write(b"220 go on\r\n")
                await writer.start_tls(tls)
                offers, secret = False, True
                continue
            if verb == b"AUTH":
                assert secret
                mails.append(b64decode(line.split()[2]))
                writer.write(b"235 ok\r\n")
                continue
            if verb == b"EHLO":
                writer.write(
                    b"250-test\r\n250 " + (b"STARTTLS" if offers else b"AUTH PLAIN") + b"\r\n"
                )
                continue
            if verb == b"RCPT" and refusal:
                writer.write(refusal)
                continue
            writer.write(b"221 bye\r\n" if verb == b"QUIT" else b"250 ok\r\n")
            if verb == b"QUIT":
                break
        writer.close()

    first = None if starts_tls else tls
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=first)
    async with server:
        yield server.sockets[0].getsockname()[1], mails


@pytest.mark.parametrize("security", ["tls", "starttls"])
async def test_mail_and_its_password_are_encrypted_for_a_known_server(
    tmp_path: Path, security: Literal["tls", "starttls"]
) -> None:
    """A server of another authority, or one that offers no encryption, gets neither."""
    now = CLOCK.now()
    key = new_key()
    authority = new_authority("mail", key, now)
    (tmp_path / "ca.pem").write_text(authority)
    (tmp_path / "other.pem").write_text(new_authority("other", new_key(), now))
    (tmp_path / "both.pem").write_text(new_certificate(authority, key, "mail", ["127.0.0.1"], now))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "both.pem")

    def channel(port: int, authorities: str) -> EmailChannel:
        options = EmailChannel.Options(
            host="127.0.0.1",
            port=port,
            security=security,
            ca_file=str(tmp_path / authorities),
            user="navarch",
            password=SECRET,
            sender="n@example.com",
            to=("o@e.com",),
        )
        return EmailChannel(options=options, clock=CLOCK)

    async with mail_server(tls=context, starts_tls=security == "starttls") as (port, mails):
        await channel(port, "ca.pem").send(OPENED, "")
        login, mail = mails
        assert login == f"\0navarch\0{SECRET}".encode()
        assert b"XID 79" in mail
        with pytest.raises(ssl.SSLError):
            await channel(port, "other.pem").send(OPENED, "")
    async with mail_server() as (port, plain):
        with pytest.raises((OSError, smtplib.SMTPException)):
            await channel(port, "ca.pem").send(OPENED, "")
    assert (len(mails), plain) == (2, [])


async def test_mail_has_one_thread_for_each_alert() -> None:
    """The end answers the beginning; no header can be injected."""
    async with mail_server() as (port, mails):
        options = EmailChannel.Options(
            host="127.0.0.1", port=port, security="none", sender="n@example.com", to=("o@e.com",)
        )
        channel = EmailChannel(options=options, clock=CLOCK)
        evil = replace(OPENED, title="n1\r\nBcc: all@example.com")
        sent = await channel.send(evil, "")
        await channel.send(replace(ENDED, since=OPENED.time), "")
        assert "1 of 1" in sent.answer
        first, last = (message_from_bytes(each, policy=default) for each in mails)
        assert (first["Bcc"], first["To"]) == (None, "o@e.com")
        assert first["Subject"].startswith("[critical] n1")
        assert last["Subject"] == "[resolved] training/n1: replaced"
        assert first["References"] == last["References"]
        assert first["Message-ID"] != last["Message-ID"]
    for refusal, kind in ((b"550 no\r\n", ChannelRefusalError), (b"450 later\r\n", RuntimeError)):
        async with mail_server(refusal) as (port, _):
            again = EmailChannel(
                options=replace(options, port=port),
                clock=CLOCK,
            )
            with pytest.raises(kind):
                await again.send(OPENED, "")
