"""HTTP/1.1 on plain streams, for commands that end soon: the import of aiohttp alone takes a sixth of a second.

It implements the parts of RFC 9112 that API servers use: bodies with a length, chunked bodies, and bodies that end with
the connection (§6, §7.1). It follows no redirects. It repeats only a GET on a connection that was used before.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from turnout.kube.client.plain_kubeconfig import ClusterAccess
from turnout.kube.client.transport import BrokenConnection, Request, Response, UnreadableCredentials

MAX_LINE_BYTES = 4096  # of a chunk's size and of a trailer
_NO_BODY = (204, 304)


class Body(Protocol):
    """A decoder that is fed with the bytes of a connection."""

    is_complete: bool  # True once the last byte has arrived
    ends_with_connection: bool  # True if the body ends only when the connection is closed

    def feed(self, raw: bytes) -> bytes:
        """Decode the next bytes of the connection and return the bytes of the body in them, maybe b"".

        Raises ValueError if these bytes are not a valid continuation.
        """


def body_of(status: int, headers: Mapping[str, str]) -> Body:
    """Return the decoder of an answer's body, by the status and the headers of the answer.

    headers: names in lower case. Raises ValueError if Content-Length is no number.
    """
    if status < 200 or status in _NO_BODY:
        return _FixedLengthBody(0)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _ChunkedBody()
    length = headers.get("content-length")
    if length is None:
        return _UnboundedBody()
    if not (length.isascii() and length.isdigit()):
        raise ValueError(f"Content-Length is {length[:40]!r}")
    return _FixedLengthBody(int(length))


class _FixedLengthBody:
    """A body of a known length."""

    ends_with_connection = False

    def __init__(self, length: int) -> None:
        """Expect `length` bytes, >= 0."""
        self._remaining_bytes, self.is_complete = length, length == 0

    def feed(self, raw: bytes) -> bytes:
        """Return the bytes unchanged: they are the next bytes of the body.

        Raises ValueError if there are more than Content-Length.
        """
        self._remaining_bytes -= len(raw)
        if self._remaining_bytes < 0:
            raise ValueError("there are more bytes than Content-Length says")
        self.is_complete = self._remaining_bytes == 0
        return raw


class _UnboundedBody:
    """A body that ends with its connection."""

    ends_with_connection, is_complete = True, False

    def feed(self, raw: bytes) -> bytes:
        """Return the bytes unchanged."""
        return raw


class _ChunkedBody:
    """A body in chunks."""

    ends_with_connection = False

    def __init__(self) -> None:
        self._unparsed, self._remaining_bytes, self._in_trailer, self.is_complete = b"", 0, False, False

    def feed(self, raw: bytes) -> bytes:
        """Return the contents of the chunks in the next bytes of the connection, maybe b"". An unfinished rest is kept.

        Raises ValueError if the bytes are no valid chunks, or come after the last chunk.
        """
        buffer, position, pieces = self._unparsed + raw, 0, list[bytes]()
        while position < len(buffer):
            if self.is_complete:
                raise ValueError("there are bytes after the last chunk")
            if self._remaining_bytes > 2:
                pieces.append(buffer[position : position + self._remaining_bytes - 2])
                position, self._remaining_bytes = position + len(pieces[-1]), self._remaining_bytes - len(pieces[-1])
                continue
            end = buffer.find(b"\r\n", position)
            if end < 0:
                if len(buffer) - position > MAX_LINE_BYTES:
                    raise ValueError("the line of a chunk's size does not end")
                break
            line, position = buffer[position:end], end + 2
            if self._remaining_bytes:  # the end of a chunk
                if line:
                    raise ValueError("a chunk is longer than its size")
                self._remaining_bytes = 0
            elif self._in_trailer:
                self.is_complete = not line
            elif size := _chunk_size(line):
                self._remaining_bytes = size + 2
            else:
                self._in_trailer = True
        self._unparsed = buffer[position:]
        return b"".join(pieces)


def _chunk_size(line: bytes) -> int:
    """Return the size in bytes that a chunk's first line gives. Raises ValueError for an invalid line."""
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ValueError(f"{line[:40]!r} is no size of a chunk")
    return int(digits, 16)


CONNECT_S = 10.0  # the deadline of opening a connection, in seconds
_CHUNK_BYTES = 256 * 1024  # read at once
_HEAD_BYTES = 256 * 1024  # of the head of an answer, at most
_PATH_CHARACTERS = "/:@!$&'()*+,;=~?%"  # not escaped in a path


class MinimalTransport:
    """The transport to the API server of a ClusterAccess."""

    def __init__(self, access: ClusterAccess) -> None:
        """Prepare TLS for an https server, without reading the token.

        Raises OSError or ValueError if the certificates cannot be used.
        """
        self._access = access
        self._url = urlsplit(access.server)
        self._tls_context = _tls_context(access) if self._url.scheme == "https" else None
        self._token = ""
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    @classmethod
    def open(cls, access: ClusterAccess) -> MinimalTransport:
        """Return a transport that has read its certificates and its token.

        Raises OSError or ValueError if it cannot read them.
        """
        transport = cls(access)
        transport._token = access.bearer_token()
        return transport

    async def reload(self) -> bool:
        """Read the token again. Return True if it changed. Raises OSError or ValueError if its file cannot be read."""
        before, self._token = self._token, self._access.bearer_token()
        return before != self._token

    async def close(self) -> None:
        """Close every connection, and wait until the event loop has closed the sockets."""
        for each in tuple(self._open):
            each.close()
        await asyncio.sleep(0)  # two rounds of the event loop, in which it closes the sockets
        await asyncio.sleep(0)

    async def send(self, request: Request) -> Response:
        """Send a request and return the answer, of any status, when its head has arrived.

        A GET reuses an idle connection. If that one turns out to be broken, the GET is sent again on the next idle or a
        new connection. Any other method is sent once, on a new connection.

        Raises OSError if there is no answer, and UnreadableCredentials if the token cannot be sent; then nothing was
        sent.
        """
        head = self._encode_head(request)
        body = b"" if request.body is None else msgspec.json.encode(request.body)
        while self._idle and request.method == "GET":
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, head, body)
            except BrokenConnection:
                continue  # the server has closed it since the last answer
        return await self._exchange(await self._connect(), head, body)

    def _encode_head(self, request: Request) -> bytes:
        """Return the bytes of a request up to its body: request line, headers with the token, and the empty line.

        Raises UnreadableCredentials if one of them contains a line break, such as a token with a newline.
        """
        path = f"{self._url.path}{quote(request.path, safe=_PATH_CHARACTERS)}"
        if request.params:
            query = {
                key: str(value).lower() if isinstance(value, bool) else value for key, value in request.params.items()
            }
            path += f"{'&' if '?' in path else '?'}{urlencode(query, quote_via=quote)}"
        headers = {"Host": self._url.netloc, "User-Agent": "turnout", **request.headers}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if request.body is not None:
            headers["Content-Length"] = str(len(msgspec.json.encode(request.body)))
        lines = [f"{request.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise UnreadableCredentials("a header of the request has two lines: is the token one line?")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    async def _connect(self) -> _Connection:
        """Open and return a connection within CONNECT_S, with TLS for an https server. Raises BrokenConnection."""
        host, secure = self._url.hostname or "", self._tls_context is not None
        port = self._url.port or (443 if secure else 80)
        name = (self._access.server_name or host) if secure else None
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(
                    host, port, ssl=self._tls_context, server_hostname=name, limit=_HEAD_BYTES
                )
        except TimeoutError as error:
            raise BrokenConnection(f"{host}:{port} does not answer within {CONNECT_S:g} s") from error
        except OSError as error:
            raise BrokenConnection(f"cannot connect to {host}:{port}: {error.strerror or error}") from error
        connection = _Connection(*streams)
        self._open.add(connection)
        return connection

    async def _exchange(self, connection: _Connection, head: bytes, body: bytes) -> _MinimalResponse:
        """Send a request on a connection, and return its answer once the head has arrived.

        head, body: the bytes of the request. Closes the connection at any failure. Raises BrokenConnection.
        """
        try:
            connection.writer.write(head + body)
            await connection.writer.drain()
            while (answer := await self._read_head(connection)).status < 200:
                pass  # 100 Continue: the answer comes after it
            return answer
        except BaseException as error:
            connection.close()
            self._open.discard(connection)
            if isinstance(error, OSError | asyncio.IncompleteReadError | asyncio.LimitOverrunError | ValueError):
                raise BrokenConnection(f"the connection broke: {error}") from error
            raise

    async def _read_head(self, connection: _Connection) -> _MinimalResponse:
        """Read the head of an answer, and return the answer with its status and headers; its body is not read yet.

        Raises ValueError if it is not HTTP/1.x, and IncompleteReadError or LimitOverrunError if the head is cut or too
        long.
        """
        raw = await connection.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"{first[:80]!r} is no answer of HTTP")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return _MinimalResponse(connection, int(rest[:3]), headers, version == "HTTP/1.1", self._return_connection)

    def _return_connection(self, connection: _Connection, reusable: bool) -> None:
        """Keep a connection for the next request, or close it. reusable: whether another request may be sent on it."""
        if reusable:
            self._idle.append(connection)
        else:
            connection.close()
            self._open.discard(connection)


class _Connection:
    """One open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the streams of a connection."""
        self.reader, self.writer = reader, writer

    def close(self) -> None:
        """Close the connection at once."""
        self.writer.transport.abort()


class _MinimalResponse:
    """An answer. It holds its connection until it is released or closed."""

    def __init__(
        self,
        connection: _Connection,
        status: int,
        headers: Mapping[str, str],
        keep_alive: bool,
        return_connection: Callable[[_Connection, bool], None],
    ) -> None:
        """Take the head of an answer.

        headers: names in lower case. keep_alive: True if the protocol keeps the connection open by default.
        return_connection: takes the connection back, and whether it can be used again.
        """
        self._connection, self._status, self._headers = connection, status, headers
        self._return_connection: Callable[[_Connection, bool], None] | None = return_connection
        self._keep_alive = keep_alive and headers.get("connection", "").lower() != "close"
        self._body = body_of(status, headers)

    @property
    def status(self) -> int:
        """Return the HTTP status code."""
        return self._status

    def header(self, name: str) -> str:
        """Return the value of a header, "" if the answer does not have it."""
        return self._headers.get(name.lower(), "")

    async def read(self) -> bytes:
        """Return the whole body. Raises BrokenConnection."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive, decoded from chunks.

        Raises BrokenConnection if the connection breaks before the end of the body, or if the body is malformed.
        """
        body, reader = self._body, self._connection.reader
        while not body.is_complete:
            try:
                raw = await reader.read(_CHUNK_BYTES)
            except OSError as error:
                raise BrokenConnection(f"the connection broke: {error}") from error
            if not raw:
                if not body.ends_with_connection:
                    raise BrokenConnection("the answer broke off")
                self._keep_alive = False
                return
            try:
                chunk = body.feed(raw)
            except ValueError as error:
                raise BrokenConnection(f"the answer cannot be read: {error}") from error
            if chunk:
                yield chunk

    def release(self) -> None:
        """Keep the connection for the next request if the body was read to its end, else close it.

        A second call does nothing.
        """
        if self._return_connection is not None:
            return_connection, self._return_connection = self._return_connection, None
            return_connection(self._connection, self._keep_alive and self._body.is_complete)

    def close(self) -> None:
        """Close the connection. Do nothing if the answer was released or closed before."""
        if self._return_connection is not None:
            return_connection, self._return_connection = self._return_connection, None
            return_connection(self._connection, False)


def _tls_context(access: ClusterAccess) -> ssl.SSLContext:
    """Return the TLS context with the CA certificates that the server's certificate is checked against, and with the
    client certificate if there is one.

    The CA certificates are the system's if access.authority is None. If access.verify is False, the server's
    certificate is not checked. Raises OSError or ValueError if a file or PEM cannot be read.
    """
    authority = access.authority
    context = ssl.create_default_context(
        cafile=str(authority) if isinstance(authority, Path) else None,
        cadata=authority if isinstance(authority, str) else None,
    )
    if not access.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if access.certificate is not None:
        with tempfile.TemporaryDirectory() as folder:  # readable for its owner alone; OpenSSL takes only files
            certificate = _pem_file(access.certificate, Path(folder) / "certificate")
            context.load_cert_chain(
                certificate, None if access.key is None else _pem_file(access.key, Path(folder) / "key")
            )
    return context


def _pem_file(pem: bytes | Path, path: Path) -> Path:
    """Return the path of the file with a PEM: `pem` itself if it is a path.

    Bytes are written to the file `path` first.
    """
    if isinstance(pem, Path):
        return pem
    path.write_bytes(pem)
    return path
