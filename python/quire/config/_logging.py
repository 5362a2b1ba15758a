"""The configuration of the log: `[[logging]]` (docs/operations.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from quire.config._mistakes import expected, got
from quire.config._model import Model, Texts
from quire.config._values import SizeLike, size_between

Level = Literal["trace", "debug", "info", "warning", "error", "critical", "none"]

#: The levels of `logging`, by the names of levels.
LEVELS: Final = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

#: The placeholders in the name of a file, and the patterns of their values. Times are in UTC.
PLACEHOLDERS: Final = {
    "%Y": "[0-9]{4}",
    "%m": "[0-9]{2}",
    "%d": "[0-9]{2}",
    "%H": "[0-9]{2}",
    "%M": "[0-9]{2}",
    "%S": "[0-9]{2}",
    "%j": "[0-9]{3}",
    "%n": "[0-9]+",
    "%%": "%",
}
#: The keys that only one target has.
_OF_FILE: Final = ("file", "rotate", "keep", "compress")
_OF_SYSLOG: Final = ("ident", "facility", "address")
_FACILITIES: Final = (
    *("auth", "authpriv", "cron", "daemon", "ftp", "kern", "lpr", "mail", "news", "syslog", "user", "uucp"),
    *(f"local{number}" for number in range(8)),
)


class Logging(Model):
    """A target of the lines of the log."""

    target: Literal["stderr", "stdout", "file", "syslog"] = "stderr"
    #: Lines of this level and above.
    level: Level = "info"
    #: Lines of these levels, too.
    levels: tuple[Literal["trace", "debug", "info", "warning", "error", "critical"], ...] = ()
    format: Literal["text", "json"] = "text"
    #: Patterns of ids. Default: every id.
    include: Texts = ()
    #: Patterns of ids. They are left out, also when `include` matches.
    exclude: Texts = ()
    #: The name of the file, below `data_directory`. `%Y %m %d %H %M %S %j` are the time of its
    #: first line in UTC, and `%n` is a running number.
    file: Annotated[str, Field(min_length=1)] | None = None
    #: The next file begins when a file would be larger.
    rotate: Annotated[int, size_between("1KB")] | None = None
    #: The number of files that are kept besides the current one. Default: all.
    keep: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    #: Files except the current one are compressed.
    compress: bool = False
    #: The name of the program in the lines of syslog.
    ident: Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[!-~]+$")] = "quire"
    facility: str = "daemon"
    #: A socket, or `host:port` for UDP.
    address: Annotated[str, Field(min_length=1)] = "/dev/log"

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            target: Literal["stderr", "stdout", "file", "syslog"] = ...,
            level: Level = ...,
            levels: Sequence[Level] = ...,
            format: Literal["text", "json"] = ...,
            include: str | Sequence[str] = ...,
            exclude: str | Sequence[str] = ...,
            file: str | None = ...,
            rotate: SizeLike | None = ...,
            keep: int | None = ...,
            compress: bool = ...,
            ident: str = ...,
            facility: str = ...,
            address: str = ...,
        ) -> None: ...

    @field_validator("include", "exclude")
    @classmethod
    def _check_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error:
                raise expected('a pattern of ids such as "^12-"', pattern) from None
        return value

    @field_validator("file")
    @classmethod
    def _check_file(cls, value: str | None) -> str | None:
        for found in re.findall(r"%.?", value or "", re.DOTALL):
            if found not in PLACEHOLDERS:
                raise ValueError(f"{got(found)} is none of {' '.join(PLACEHOLDERS)}")
        if "%" in str(Path(value or "").parent):
            raise ValueError(f"{got(value)}: only the name of the file may have placeholders")
        return value

    @field_validator("facility")
    @classmethod
    def _check_facility(cls, value: str) -> str:
        if value not in _FACILITIES:
            raise expected(f"one of {', '.join(_FACILITIES)}", value)
        return value

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        for target, keys in (("file", _OF_FILE), ("syslog", _OF_SYSLOG)):
            given = [key for key in keys if key in self.model_fields_set]
            if given and self.target != target:
                raise ValueError(f'{given[0]} requires target = "{target}"')
        if self.target == "file" and self.file is None:
            raise ValueError('target = "file" requires file')
        if self.rotate is not None and "%n" not in (self.file or "").replace("%%", ""):
            raise ValueError("rotate requires %n in file, the number of the next file")
        return self

    def takes(self, level: int, line_id: str) -> bool:
        """Whether the target has lines of a level of `logging` with an id."""
        is_taken = self.level != "none" and level >= LEVELS[self.level]
        if not is_taken and not any(level == LEVELS[name] for name in self.levels):
            return False
        if self.include and not any(re.search(pattern, line_id) for pattern in self.include):
            return False
        return not any(re.search(pattern, line_id) for pattern in self.exclude)

    @property
    def lowest(self) -> int:
        """The lowest level of its lines."""
        names = [*self.levels, *([] if self.level == "none" else [self.level])]
        return min((LEVELS[name] for name in names), default=max(LEVELS.values()) + 1)
