"""The console: its files, and the requests of its pages beyond the tree (docs/how-to/console.md)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import mimetypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire import __version__
from quire._errors import QuireError
from quire.admin._app import AdminApp, text_of
from quire.admin._clients import Clients, refusal
from quire.admin._console_logs import LogTail
from quire.admin._console_messages import MessageRoutes
from quire.admin._console_stream import stream
from quire.admin._errors import HTTPError
from quire.admin._several import Several
from quire.admin._user_requests import UserRequests

if TYPE_CHECKING:
    from quire.server._server import Server

#: The resources on which a page needs to know the rights of the user.
_RESOURCES: Final = (
    "/quire/server",
    "/quire/clients",
    "/quire/replication",
    "/quire/journal",
    "/quire/access",
)
_RIGHTS: Final = ("read", "replay", "query", "write", "delete", "monitor", "admin")
_FILES: Final = Path(__file__).parent / "console"
#: Files of the journal in one answer: the newest ones.
_SEGMENTS_MAX: Final = 1000
#: Leases in one answer: those that began first.
_LEASES_MAX: Final = 100


def add_routes(app: AdminApp, server: Server) -> None:
    """Adds the paths of the console: `/`, those below `/console`, and the requests about messages of queues."""
    _Console(app, server).add()


class _Console:
    """The paths of the console."""

    def __init__(self, app: AdminApp, server: Server) -> None:
        self._app = app
        self._server = server
        self._logs = LogTail()
        self._assets = _Assets(_FILES)

    def add(self) -> None:
        """Adds the paths."""
        app = self._app
        clients = Clients(self._server._connect_inside)
        app.add_route("/", self._page)
        app.add_route("/console/assets/{path:path}", self._asset)
        app.add_route("/console/api/several", Several(app).answer)
        app.add_route("/console/api/session", self._session)
        app.add_route("/console/api/rights", self._rights)
        app.add_route("/console/api/holders", self._holders)
        app.add_route("/console/api/journal", self._segments)
        app.add_route("/console/api/logs", self._log_lines)
        app.add_route("/console/api/logs/follow", self._log_follow)
        MessageRoutes(app, clients).add()
        UserRequests(app, clients).add()
        app.add_route("/console", self._page)
        app.add_route("/console/{page}", self._page)

    async def _page(self, request: Request) -> Response:
        headers = {"Content-Security-Policy": self._assets.policy}
        return Response(self._assets.page, media_type="text/html", headers=headers)

    async def _asset(self, request: Request) -> Response:
        found = self._assets.files.get(request.path_params["path"])
        if found is None:
            raise HTTPError(404, "not_found", f"{request.url.path} does not exist")
        data, kind, tag = found
        # A browser asks whether its copy is that of this version.
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    async def _session(self, request: Request) -> Response:
        rights = {
            resource: [right for right in ("monitor", "admin") if self._app.may(request, right, resource)]
            for resource in _RESOURCES
        }
        return JSONResponse(
            {
                "user": self._app.identity(request).user,
                "instance": self._server.config.name,
                "version": __version__,
                "read_only": self._app.admin.read_only,
                "rights": rights,
            }
        )

    async def _rights(self, request: Request) -> Response:
        name = text_of(request.query_params, "name")
        rights = [right for right in _RIGHTS if self._app.may(request, right, name)]
        return JSONResponse({"name": name, "rights": rights})

    async def _holders(self, request: Request) -> Response:
        """The subscriptions of a queue, and the messages that they hold: those that were delivered first."""
        queue = text_of(request.query_params, "queue")
        self._app.require(request, "monitor", queue)
        self._app.require(request, "monitor", "/quire/clients")
        tree = await self._app.current()
        if queue not in tree.get("instance/queues", {}):
            raise HTTPError(404, "not_found", f"no queue has the name {queue!r}")
        details = await self._app.details(queue)
        return JSONResponse(
            {
                "consumers": details["subscriptions"],
                "leases": details["leases"][:_LEASES_MAX],
                "leases_total": max(tree["instance/queues"][queue]["backlog"], len(details["leases"])),
            }
        )

    async def _segments(self, request: Request) -> Response:
        self._app.require(request, "monitor", "/quire/server")
        try:
            segments = await asyncio.to_thread(lambda: list(self._server.journal.segments()))
        except QuireError as error:
            raise refusal(error) from None
        files = [
            {
                "number": each.number,
                "state": each.state,
                "size": each.size,
                "count": each.count,
                "first_time": _seconds(each.first_timestamp_ns),
                "last_time": _seconds(each.last_timestamp_ns),
                "path": str(each.path),
            }
            for each in segments[-_SEGMENTS_MAX:]
        ]
        return JSONResponse({"files": files, "total": len(segments)})

    async def _log_lines(self, request: Request) -> Response:
        self._app.require(request, "monitor", "/quire/server")
        return JSONResponse({"lines": self._logs.lines()})

    async def _log_follow(self, request: Request) -> Response:
        self._app.require(request, "monitor", "/quire/server")
        return stream(self._app, request, self._logs.follow(), "monitor", "/quire/server")


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


class _Assets:
    """The files of the console, in memory."""

    def __init__(self, directory: Path) -> None:
        #: By their paths: data, media type, and a tag that differs for other data.
        self.files: dict[str, tuple[bytes, str, str]] = {}
        for file in sorted(directory.rglob("*")):
            if file.is_file() and file.suffix != ".html":
                data = file.read_bytes()
                path = file.relative_to(directory).as_posix()
                self.files[path] = data, _kind_of(file), f'"{hashlib.sha256(data).hexdigest()[:20]}"'
        self.page = (directory / "index.html").read_bytes()
        found = re.search(rb'<script type="importmap">(.*?)</script>', self.page, re.DOTALL)
        assert found is not None
        # A browser takes an import map from the page only. Its hash allows this one, and no other
        # script of the page.
        digest = base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
        self.policy = (
            f"default-src 'self'; script-src 'self' 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'; "
            "form-action 'self'"
        )


def _kind_of(file: Path) -> str:
    if file.suffix in (".js", ".mjs"):
        return "text/javascript"
    return mimetypes.types_map.get(file.suffix, "text/plain")
