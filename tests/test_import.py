"""`import quire` is quick, loads what it must and no more, and has every name that it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
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


def python_beside(names: list[str], directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with a package `quire` whose directory has these names, too."""
    (directory / "quire").symlink_to(Path(quire.__file__).parent, target_is_directory=True)
    for name in names:
        (directory / name).mkdir()
    environment = {**os.environ, "PYTHONPATH": str(directory)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)


@pytest.mark.parametrize("name", ["quire-0.2.0.dist-info", "quire-0.2.0-py3.11.egg-info"])
def test_an_import_of_files_that_the_other_distribution_shares_names_both(tmp_path: Path, name: str) -> None:
    result = python_beside([name], tmp_path, "import quire")
    assert result.returncode != 0
    reason = result.stderr.strip().splitlines()[-1]
    assert reason.startswith(
        f"ImportError: quire-mq: the distribution quire 0.2.0 is installed in {tmp_path}, too."
    ), result.stderr
    assert reason.endswith("pip uninstall quire quire-mq; pip install quire-mq")


def test_similar_names_next_to_the_package_are_no_other_distribution(tmp_path: Path) -> None:
    names = ["quire_mq-0.1.0.dist-info", "quire-tools-1.0.dist-info"]
    result = python_beside(names, tmp_path, "import quire; print(quire.__file__)")
    assert result.stdout.strip() == str(tmp_path / "quire" / "__init__.py"), result.stderr


def test_the_other_distribution_in_another_directory_does_not_stop_an_import(tmp_path: Path) -> None:
    (tmp_path / "quire-0.2.0.dist-info").mkdir()
    (tmp_path / "archive.zip").write_bytes(b"")
    more = [str(tmp_path), str(tmp_path / "archive.zip"), str(tmp_path / "missing"), b"/bytes"]
    program = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path += {more!r}; import quire"
    assert python(f"{program}; print(quire.__version__)") == quire.__version__
