"""Administrative requests: the paths below `/quire/administrator` that take a POST."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire._errors import ConfigError, QuireError
from quire._units import seconds
from quire.actions._steps import dump_stacks
from quire.admin import _nodes
from quire.admin._app import AdminApp, members_of
from quire.admin._errors import HTTPError, bad_value
from quire.admin._user_requests import LISTED
from quire.config._logging import LEVELS
from quire.server._log import line

if TYPE_CHECKING:
    from quire.server._server import Server

_log = logging.getLogger("quire.server")

#: The longest time in seconds that a client name can be blocked, as for clients.
BLOCK_MAX: Final = 49 * 86400.0
_LINKS: Final = ("downgrade", "upgrade", "pause", "resume")
_FILES: Final = ("archive", "compress", "remove")

#: Carries out a request: the id in its path, and the members of its body. Returns the answer.
Act = Callable[[str, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Action:
    """A request that may be posted."""

    #: The parts of the path; `None`: any id.
    path: tuple[str | None, ...]
    #: The resource on which the right `admin` is needed.
    resource: str
    #: The members that the body may have.
    members: tuple[str, ...]
    act: Act

    def id_in(self, parts: list[str]) -> str | None:
        """The id in a path, or an empty text when it has none; `None`: it is the path of another request."""
        if len(parts) != len(self.path):
            return None
        if any(part is not None and part != given for part, given in zip(self.path, parts, strict=True)):
            return None
        return next((given for part, given in zip(self.path, parts, strict=True) if part is None), "")


class Requests:
    """Carries out administrative requests. A GET lists them."""

    def __init__(self, app: AdminApp, server: Server) -> None:
        self._app = app
        self._server = server
        links = [
            Action(("replication", None, name), "/quire/replication", (), self._link(name)) for name in _LINKS
        ]
        files = [
            Action(("journal", name), "/quire/journal", ("age", "size_max"), self._files(name))
            for name in _FILES
        ]
        transports = [
            Action(("transports", None, name), "/quire/server", (), act)
            for name, act in (("enable", self._enable), ("disable", self._disable))
        ]
        self._actions = [
            Action(("clients", None, "disconnect"), "/quire/clients", ("block",), self._disconnect),
            *transports,
            *links,
            *files,
            Action(("statistics", "truncate"), "/quire/server", ("age",), self._truncate),
            Action(("entitlements", "reset"), "/quire/access", (), self._reset),
            Action(("logging", "rotate"), "/quire/server", (), self._rotate),
            Action(("logging", "level"), "/quire/server", ("target", "level"), self._level),
            Action(("diagnostics", "stacks"), "/quire/server", (), self._stacks),
            Action(("diagnostics", "queues"), "/quire/server", (), self._queues),
            Action(("shutdown",), "/quire/server", ("confirm",), self._shutdown),
        ]
        for path in ("/quire/administrator", "/quire/administrator.json", "/quire/administrator/{path:path}"):
            app.add_route(path, self._list, is_first=True)
        app.add_route("/quire/administrator/{path:path}", self._post, methods=["POST"], is_first=True)

    async def _list(self, request: Request) -> Response:
        self._app.require(request, "monitor", "/quire/server")
        parts, _ = self._parts(request)
        own = ((action.path, action.members, f"admin on {action.resource}") for action in self._actions)
        found = [
            {
                "path": "/quire/administrator/" + "/".join(part or "{id}" for part in path),
                "members": list(members),
                "right": right,
            }
            for path, members, right in (*own, *LISTED, *self._paths_of_actions())
            if _begins(path, parts)
        ]
        if not found:
            raise _nodes.not_found("/".join(["administrator", *parts]))
        return JSONResponse(found)

    async def _post(self, request: Request) -> Response:
        parts, _ = self._parts(request)
        if parts[:1] == ["actions"]:
            return await self._run_action(request, "/".join(parts[1:]))
        for action in self._actions:
            if (id := action.id_in(parts)) is not None:
                break
        else:
            raise _nodes.not_found("/".join(["administrator", *parts]))
        self._app.require(request, "admin", action.resource)
        members = await members_of(request, action.members)
        loop = asyncio.get_running_loop()
        try:
            return JSONResponse(await loop.run_in_executor(None, action.act, id, members))
        except ConfigError as error:
            raise bad_value(str(error)) from None
        except QuireError as error:
            raise HTTPError(409, error.code, str(error)) from None
        except (OSError, sqlite3.Error) as error:
            raise HTTPError(409, "unavailable", str(error)) from None

    def _paths_of_actions(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
        """The paths that start actions, the members of their bodies, and their right."""
        actions = self._server._actions
        paths = {} if actions is None else actions.paths()
        if not paths:
            yield ("actions", "{id}"), (), "admin on /quire/server"
        for path, (required, optional) in paths.items():
            yield ("actions", *path.split("/")), (*required, *optional), "admin on /quire/server"

    async def _run_action(self, request: Request, path: str) -> Response:
        """Starts the actions of a path. The answer has what became of each run."""
        actions = self._server._actions
        paths = {} if actions is None else actions.paths()
        if actions is None or path not in paths:
            raise _nodes.not_found(f"administrator/actions/{path}")
        self._app.require(request, "admin", "/quire/server")
        required, optional = paths[path]
        members = await members_of(request, (*required, *optional))
        if missing := [name for name in required if members.get(name) is None]:
            raise bad_value(f"the body needs the member {missing[0]!r}")
        loop = asyncio.get_running_loop()
        return JSONResponse({"runs": await loop.run_in_executor(None, actions.request, path, members)})

    def _parts(self, request: Request) -> tuple[list[str], str | None]:
        raw_path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
        return _nodes.split(raw_path.removeprefix("/quire/administrator"))

    def _disconnect(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        engine, block = self._server._running_engine, 0.0
        if members.get("block") is not None:
            block = seconds(members["block"], "block")
            if block > BLOCK_MAX:
                raise bad_value("block: the longest time is 49 days")
        if not id.isascii() or not id.isdigit() or not engine.disconnect(int(id), round(block * 1000)):
            raise HTTPError(404, "not_found", f"no connection has the number {id!r}")
        return {"disconnected": 1}

    def _transport(self, name: str) -> int:
        """The place of a transport in the configuration."""
        names = [transport.name for transport in self._server.config.transport]
        if name not in names:
            raise HTTPError(404, "not_found", f"no transport has the name {name!r}")
        return names.index(name)

    def _enable(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        self._server._enable_transport(self._transport(id))
        return {"transport": id, "enabled": True}

    def _disable(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        count = self._server._disable_transport(self._transport(id))
        return {"transport": id, "enabled": False, "disconnected": count}

    def _truncate(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        administration = self._server._administration
        assert administration is not None
        if members.get("age") is None:
            raise bad_value("age: it is required", 'send {"age": "1d"}')
        return {"samples": administration.truncate(seconds(members["age"], "age"))}

    def _reset(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        self._server._forget_results()
        return {"reset": True}

    def _link(self, action: str) -> Act:
        def act(id: str, members: Mapping[str, Any]) -> dict[str, Any]:
            known = {each["name"] for each in self._server.replication.stats()["destinations"]}
            if id not in known:
                raise HTTPError(404, "not_found", f"no destination has the name {id!r}")
            getattr(self._server.replication, action)(id)
            return {"destination": id, "action": action}

        return act

    def _files(self, action: str) -> Act:
        def act(id: str, members: Mapping[str, Any]) -> dict[str, Any]:
            which = {name: value for name, value in members.items() if value is not None}
            if len(which) != 1:
                raise bad_value("the body needs either age or size_max")
            taken = getattr(self._server.journal, action)(**which)
            return {"files": [{"path": str(each.path), "state": each.state} for each in taken]}

        return act

    def _stacks(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        return {"threads": dump_stacks()}

    def _rotate(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        self._server._rotate_logs()
        return {"rotated": True}

    def _level(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        target, level = members.get("target"), members.get("level")
        if isinstance(target, bool) or not isinstance(target, int):
            raise bad_value("target: it is required, and is the number of a [[logging]], from 0")
        if not isinstance(level, str) or level not in (*LEVELS, "none"):
            raise bad_value(f"level: expected one of {', '.join(LEVELS)} and none")
        self._server._set_log_level(target, level)
        return {"target": target, "level": level}

    def _queues(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        queues = self._server.stats()["queues"]
        for name, figures in queues.items():
            _log.info("state of queue %r: %s", name, json.dumps(figures), extra=line("31-0010", queue=name))
        return {"queues": len(queues)}

    def _shutdown(self, id: str, members: Mapping[str, Any]) -> dict[str, Any]:
        name = self._server.config.name
        if members.get("confirm") != name:
            raise bad_value(f"confirm: expected the name of the instance, {name!r}")
        self._server._request_stop()
        return {"state": "stopping"}


def _begins(path: tuple[str | None, ...], parts: list[str]) -> bool:
    return len(parts) <= len(path) and all(
        part is None or part == given for part, given in zip(path, parts, strict=False)
    )
