"""`import quire` is quick, loads what it must and no more, and has every name that it promises."""

from __future__ import annotations

import subprocess
import sys

import quire
from support.waiting import PATIENCE

#: Times the processor time of `import asyncio`: the ratio is about the same on every machine.
IMPORT_TIME_MAX = 1.5


def python(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_an_import_takes_little_time() -> None:
    program = "import time; begun = time.process_time(); import {}; print(time.process_time() - begun)"
    times: dict[str, list[float]] = {"quire": [], "asyncio": []}
    for _ in range(5):
        for module, seconds in times.items():
            seconds.append(float(python(program.format(module))))
    assert min(times["quire"]) < IMPORT_TIME_MAX * min(times["asyncio"]), times


def test_an_import_loads_nothing_that_a_client_does_not_need() -> None:
    heavy = ("asyncio", "cyclopts", "pyarrow", "pydantic", "rich")
    program = f"import sys, quire; quire.Client; print([name for name in {heavy} if name in sys.modules])"
    assert python(program) == "[]"


def test_every_name_is_there_and_listed() -> None:
    program = "import quire; print(all(hasattr(quire, name) for name in quire.__all__), set(quire.__all__) - set(dir(quire)))"
    assert python(program) == "True set()"
    assert len(quire.__all__) == len(set(quire.__all__))
    assert not hasattr(quire, "nonsense")
