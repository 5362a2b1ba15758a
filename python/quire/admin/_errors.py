"""Answers that say what was wrong with a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import JSONResponse


class HTTPError(Exception):
    """A request that is not carried out."""

    def __init__(
        self, status: int, code: str, reason: str, hint: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.hint = hint
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """The answer."""
        # The command line uses the paths and forms of the tree, and needs no HTTP server.
        from starlette.responses import JSONResponse

        error = {"code": self.code, "reason": self.reason, "hint": self.hint}
        return JSONResponse({"error": error}, self.status, self.headers)


def bad_value(reason: str, hint: str = "") -> HTTPError:
    """The error for a value that cannot be used."""
    return HTTPError(400, "bad_value", reason, hint)


def bug() -> HTTPError:
    """The error for a request that the server should have answered."""
    return HTTPError(500, "internal", "the server has a bug; its log has the cause")
