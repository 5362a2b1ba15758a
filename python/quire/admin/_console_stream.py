"""Answers that do not end: JSON lines, for as long as the user may see them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from quire._errors import QuireError
from quire.admin._app import AdminApp
from quire.admin._clients import refusal
from quire.admin._errors import HTTPError

#: Seconds between two looks at the rights of the user. A line is sent at each of them, so that a
#: page which does not read is noticed, too.
RECHECK_INTERVAL: Final = 5.0

Lines = list[dict[str, Any]]


def stream(
    app: AdminApp, request: Request, batches: AsyncGenerator[Lines], right: str, name: str
) -> Response:
    """Sends the lines of `batches` as they come, until the user may not see `name` any more.

    Raises `HTTPError` when the user may not see it now. The server
    ends the connection of a reader that does not read in time. One batch waits for it at most.
    """
    app.require(request, right, name)
    return StreamingResponse(_encoded(app, request, batches, right, name), media_type="application/x-ndjson")


async def _encoded(
    app: AdminApp, request: Request, batches: AsyncGenerator[Lines], right: str, name: str
) -> AsyncGenerator[bytes]:
    following: asyncio.Task[Lines] | None = None
    guard = app.access.guard
    try:
        # The page learns at once that the server has taken the request.
        yield _line({"begun": True})
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(batches))
            await asyncio.wait([following], timeout=RECHECK_INTERVAL)
            if app.access.guard is not guard or not _may_still(app, request, right, name):
                yield _line(_error("entitlement_reset", "the rights of the user were changed"))
                return
            if not following.done():
                yield _line({"ping": True})
                continue
            lines, following = following.result(), None
            yield b"".join(map(_line, lines))
    except StopAsyncIteration:
        return
    except (QuireError, TimeoutError) as error:
        told = refusal(error)
        yield _line(_error(told.code, told.reason, told.hint))
    except HTTPError as error:
        yield _line(_error(error.code, error.reason, error.hint))
    finally:
        if following is not None:
            following.cancel()
            with contextlib.suppress(BaseException):
                await following
        await batches.aclose()


def _may_still(app: AdminApp, request: Request, right: str, name: str) -> bool:
    identity = app.identity(request)
    guard = app.access.guard
    if identity.expires is not None and identity.expires <= time.time():
        return False
    return (guard is None or guard.still(identity)) and app.may(request, right, name)


def _error(code: str, reason: str, hint: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "reason": reason, "hint": hint}}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
