"""`quire token`: shows the parts of a token."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter

from quire._errors import ConfigError
from quire.cli._output import note, say

app = App(name="token", help="Show the header and the claims of a token.", help_format="plaintext")

#: A server takes no longer token.
_SIZE_MAX: Final = 16 * 1024


@app.command
def inspect(
    file: Annotated[
        Path,
        Parameter(
            allow_leading_hyphen=True, help="File with the token. The default, -, is the standard input."
        ),
    ] = Path("-"),
    /,
) -> int:
    """Print the header and the claims of a token (JWT), each as a JSON object.

    The signature is not checked, and not printed. No key is needed.
    Exit code 2: the text is not a token.

    For example:
      quire token inspect token.jwt
      echo "$QUIRE_TOKEN" | quire token inspect
    """
    try:
        text = sys.stdin.read(_SIZE_MAX + 2) if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise _not_a_token("it is not text") from None
    token = text.strip()
    if len(token) > _SIZE_MAX:
        raise _not_a_token(f"it has more than {_SIZE_MAX} bytes")
    parts = token.split(".")
    if len(parts) != 3:
        raise _not_a_token("a token has three parts with dots between them")
    for part, what in zip(parts, ("header", "claims"), strict=False):
        for line in json.dumps(_object_in(part, what), indent=2, ensure_ascii=False).split("\n"):
            say(line)
    note("the signature was not checked")
    return 0


def _object_in(part: str, what: str) -> dict[str, object]:
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _not_a_token(f"its {what} is not a JSON object in base64url")
    return found


def _not_a_token(reason: str) -> ConfigError:
    """The error does not repeat the text: it can be another secret."""
    return ConfigError(f"not a token: {reason}", key="FILE")
