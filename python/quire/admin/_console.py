"""The pages of the console."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quire.admin._app import AdminApp


def add_routes(app: AdminApp) -> None:
    """Adds the paths of the console: `/` and those below `/console`."""

    async def home(request: Request) -> Response:
        return RedirectResponse("/quire")

    app.add_route("/", home)
