"""The page's server: loopback only, one secret in its address, and every way in guarded.

A request is answered if its Host is ours, it comes from no other origin, and it carries the token:
as the first part of its path, as `?token=` or in the header X-Halfmask-Token. Anything else is 403.
No cookie is set: cookies of 127.0.0.1 are sent to every port, so to other programs of other people.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halfmask.errors import HalfmaskError, InputError, raised_at
from halfmask.storage import plain
from halfmask.studio.workshop import MissingError, NotPublicError, Workshop

LOOPBACK = "127.0.0.1"
_MOST_BODY = 4 << 20
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-downloads"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Lets through what carries the token, is addressed to us and comes from nowhere else."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = (f"{LOOPBACK}:{port}".encode(), f"localhost:{port}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, hand on, or refuse."""
        if scope["type"] != "http":
            return
        path = self._opened(scope)
        if path is None:
            text = "403: this page needs the address that `halfmask studio` printed.\n"
            refused = Response(text, status_code=403, media_type="text/plain")
            await refused(scope, receive, _with_headers(send))
            return
        if path == "" or (path == "/" and scope["path"] == "/" and scope["query_string"]):
            # From the address that was printed to the page, whose links are all relative.
            where = RedirectResponse(f"/{self._token.decode()}/", status_code=303)
            await where(scope, receive, _with_headers(send))
            return
        inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": ""}
        await self._app(inner, receive, _with_headers(send))

    def _opened(self, scope: Scope) -> str | None:
        """The path behind the token; None where the request is refused."""
        headers = scope["headers"]
        hosts = [value.lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return None
        origins = [value.lower() for name, value in headers if name == b"origin"]
        if any(origin != b"http://" + hosts[0] for origin in origins):
            return None
        sites = dict(headers).get(b"sec-fetch-site", b"same-origin")
        mode = dict(headers).get(b"sec-fetch-mode", b"navigate")
        if sites not in (b"same-origin", b"none") and mode != b"navigate":
            return None
        return self._behind_token(scope, headers)

    def _behind_token(self, scope: Scope, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        path: str = scope["path"]
        _, _, rest = path.partition("/")
        first, slash, behind = rest.partition("/")
        if self._same(first):
            return f"/{behind}" if slash else ""
        given = [value for name, value in headers if name == b"x-halfmask-token"]
        pairs = parse_qsl(scope["query_string"].decode("latin-1"))
        given += [value.encode() for name, value in pairs if name == "token"]
        return path if len(given) == 1 and self._same(given[0]) else None

    def _same(self, given: str | bytes) -> bool:
        data = given.encode("utf-8", "replace") if isinstance(given, str) else given
        return hmac.compare_digest(data, self._token)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def application(workshop: Workshop, *, token: str, port: int) -> Guard:
    """All of it, behind the guard."""
    shelf = _static()

    def read(function: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(_answer, lambda: function(request))

        return endpoint

    def change(function: Callable[[Mapping[str, Any]], Any]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            if body is None:
                return _json({"error": {"message": "Expected a JSON object."}}, 400)
            return await run_in_threadpool(_answer, lambda: function(body))

        return endpoint

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in shelf:
            return Response("404\n", status_code=404)
        return Response(shelf[name], media_type=_TYPES[os.path.splitext(name)[1]])

    async def report(request: Request) -> Response:
        def written() -> Response:
            content = workshop.report(request.path_params["name"])
            headers = {"Content-Security-Policy": _REPORT_POLICY}
            return Response(content, media_type="text/html", headers=headers)

        return await run_in_threadpool(_answer, written)

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/report/{name}", report),
        Route("/api/state", read(lambda _: workshop.state())),
        Route("/api/picture/{id:int}", read(lambda r: workshop.picture(r.path_params["id"]))),
        Route("/api/price", read(lambda r: workshop.price(dict(r.query_params)))),
        Route("/api/plan", read(lambda r: workshop.plan(dict(r.query_params)))),
        Route("/api/training", read(lambda _: workshop.training())),
        Route("/api/results", read(lambda _: workshop.results())),
        Route("/api/result/{name}", read(lambda r: workshop.result(r.path_params["name"]))),
        *(
            Route(f"/api/{name}", change(function), methods=["POST"])
            for name, function in (
                ("change", workshop.change),
                ("undo", workshop.undo),
                ("redo", workshop.redo),
                ("settings", workshop.settings),
                ("save", workshop.save),
                ("train", workshop.train),
                ("stop", workshop.stop),
            )
        ),
    ]
    return Guard(Starlette(routes=routes), token=token, port=port)


def _static() -> dict[str, bytes]:
    """The files of the page, by name; nothing else can be asked for."""
    found = files("halfmask.studio").joinpath("static").iterdir()
    return {f.name: f.read_bytes() for f in found if os.path.splitext(f.name)[1] in _TYPES}


def _answer(function: Callable[[], Any]) -> Response:
    """The result, or an error in words; never the text of a foreign exception."""
    try:
        found = function()
        return found if isinstance(found, Response) else _json(found)
    except HalfmaskError as error:
        statuses: dict[type, int] = {NotPublicError: 403, MissingError: 404}
        status = statuses.get(type(error), 422)
        return _json({"error": {"message": str(error)}}, status)
    except OSError as error:
        return _json({"error": {"message": f"A file: {error.strerror}."}}, 422)
    except Exception as error:
        text = f"Unexpected {type(error).__name__} at {raised_at(error)}: a defect of halfmask."
        return _json({"error": {"message": text}}, 500)


def _json(data: Any, status: int = 200) -> Response:
    text = json.dumps(plain(data), allow_nan=False)
    return Response(text, status_code=status, media_type="application/json")


async def _body(request: Request) -> dict[str, Any] | None:
    """The JSON object that was sent; None for anything else, or for too much."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        return None
    received = b""
    async for piece in request.stream():
        received += piece
        if len(received) > _MOST_BODY:
            return None
    try:
        found = json.loads(received)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def listening(port: int) -> socket.socket:
    """A socket on loopback; port 0 takes a free one."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((LOOPBACK, port))
        opened.listen()  # who opens the address at once has to wait, and is not refused
    except OSError as error:
        opened.close()
        raise InputError(
            f"Port {port} cannot be used ({error.strerror}): name another with --port, or leave it "
            "out."
        ) from None
    return opened


def serve_studio(app: Guard, opened: socket.socket) -> None:
    """Answer until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[opened])
