"""`quire errors`."""

from __future__ import annotations

import json
import textwrap
from difflib import get_close_matches

from quire._errors import CASES
from quire._log_lines import LINES
from quire.cli._output import note

_WIDTH = 100


def explain(id: str | None, *, as_json: bool) -> int:
    """Prints the meaning of a line of the log or of an error, and what to do. Without `id`: of all."""
    rows = {name: (line.meaning, line.advice) for name, line in LINES.items()}
    rows |= {name: (case.meaning, case.advice) for name, case in sorted(CASES.items())}
    if id is not None and id not in rows:
        near = get_close_matches(id, rows, 1)
        note(f"no line and no error has the id {id!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return 1
    for name, (meaning, advice) in rows.items() if id is None else [(id, rows[id])]:
        if as_json:
            print(json.dumps({"id": name, "meaning": meaning, "advice": advice}))
        elif id is None:
            print(f"{name}  {meaning}")
        else:
            print(*textwrap.wrap(meaning, _WIDTH), *textwrap.wrap(advice, _WIDTH), sep="\n")
    return 0
