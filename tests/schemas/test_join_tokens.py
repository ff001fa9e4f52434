"""A token is one word, which says what was put into it, or is refused."""

import base64
import zlib
from datetime import UTC, datetime

import pytest

from schemas.join_tokens import (
    CONTENT_BYTES_MAX,
    PREFIX,
    JoinToken,
    decode_token,
    encode_token,
    fingerprint_of,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TOKEN = JoinToken(
    url="tls://bus.example.com:4222",
    pool="gpu",
    node="gpu-01",
    secret="s3cret",
    credentials="-----BEGIN NATS USER JWT-----\nx\n",
    authority="-----BEGIN CERTIFICATE-----\nx\n",
    issued_at=NOW,
    expires_at=NOW,
)


def test_a_token_says_what_was_put_into_it() -> None:
    """A terminal may have broken it into lines."""
    word = encode_token(TOKEN)

    assert decode_token(word) == TOKEN
    assert decode_token(f"  {word[:40]}\n{word[40:]}\r\n") == TOKEN
    assert word.startswith(PREFIX)
    assert "s3cret" not in word


def packed(data: bytes) -> str:
    """Pack content as a token has it."""
    return PREFIX + base64.urlsafe_b64encode(zlib.compress(data)).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-01",
        PREFIX,
        encode_token(TOKEN)[:-1],
        encode_token(TOKEN)[: len(PREFIX) + 30],
        encode_token(TOKEN).replace("join-1", "join-2"),
        encode_token(TOKEN)[:60] + "!" + encode_token(TOKEN)[61:],
        packed(b"{}"),
        packed(b"[" * CONTENT_BYTES_MAX),
        packed(b" " * 50_000_000),
        PREFIX + "A" * 100_000,
    ],
)
def test_what_is_no_token_is_refused(text: str) -> None:
    """Cut, changed, of another form, or made to fill the memory."""
    with pytest.raises(ValueError, match=r"a token begins with|it was changed or cut"):
        decode_token(text)


def test_people_compare_authorities_by_a_fingerprint() -> None:
    """White space around the text does not count."""
    assert fingerprint_of("") == ""
    assert fingerprint_of("x\n") == fingerprint_of("x") != fingerprint_of("y")
