"""The responses of the page: headers, compression, entity tags, and the answers that are reused."""

from __future__ import annotations

import gzip
import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec
from aiohttp import web

from turnout.cli.page.cluster_state import Rights
from turnout.cli.page.messages import Problem

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SMALL = 1_000  # bytes, below which an answer is not compressed
MAX_ANSWERS = 256  # that are stored


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """An answer as bytes."""

    version: int  # of the state that it shows
    body: bytes
    packed: bytes  # the same with gzip; empty for a small body
    tag: str  # for If-None-Match


def encode_answer(answer: msgspec.Struct, version: int) -> EncodedAnswer:
    """Encode an answer as JSON. version: of the state that it shows."""
    body = msgspec.json.encode(answer)
    packed = gzip.compress(body, 6, mtime=0) if len(body) > SMALL else b""
    return EncodedAnswer(version, body, packed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def answer_response(request: web.Request, encoded: EncodedAnswer) -> web.Response:
    """Return the answer as a response, compressed if the browser accepts gzip.

    Status 304 if it has this version already.
    """
    headers = {
        "ETag": encoded.tag,
        "Cache-Control": "private, no-cache",
        "Vary": "Accept-Encoding, Cookie, Authorization",
    }
    if request.headers.get("If-None-Match") == encoded.tag:
        return web.Response(status=304, headers=headers)
    body = encoded.body
    if encoded.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = encoded.packed, "gzip"
    return web.Response(body=body, headers=headers, content_type="application/json", charset="utf-8")


def bytes_response(request: web.Request, body: bytes, kind: str, cached: bool = False) -> web.Response:
    """Return bytes as a response. kind: its content type, as in "text/html".

    cached: the browser may keep it, but has to ask each time (ETag with no-cache); unchanged bytes are answered with
    304.
    """
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"} if cached else {}
    if cached and request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers, content_type=kind, charset="utf-8")


def problem_response(status: int, error: str, next_step: str = "") -> web.Response:
    """Return an error as a JSON response. status: of HTTP. next_step: what the user can do; "" if nothing."""
    body = msgspec.json.encode(Problem(error, next_step))
    return web.Response(status=status, body=body, headers=HEADERS, content_type="application/json", charset="utf-8")


class AnswerCache:
    """The newest answers, for the same address and the same rights."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, Rights], EncodedAnswer] = OrderedDict()

    def get(self, key: tuple[str, Rights], version: int) -> EncodedAnswer | None:
        """Return the stored answer; None if there is none of this version.

        key: (path and query of the request, rights of the user).
        """
        answer = self._answers.get(key)
        return answer if answer is not None and answer.version == version else None

    def put(self, key: tuple[str, Rights], answer: EncodedAnswer) -> EncodedAnswer:
        """Store an answer and return it. Beyond MAX_ANSWERS the ones stored first are removed.

        key: (path and query of the request, rights of the user).
        """
        self._answers[key] = answer
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer
