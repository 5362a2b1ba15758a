"""Installs a wheel of quire into an empty environment and runs what a new user runs first.

    python tests/wheel.py WHEEL

The environment has nothing but the wheel and what the wheel requires: neither the sources nor a
compiler are used.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: Publishes, flushes, replays; then the same in a second process over the journal that the first
#: one left.
PUBLISH_AND_REPLAY = """
import sys
import quire

with quire.Client("file:./journal", name="wheel") as client:
    first = client.publish("orders", {"qty": 1})
    client.flush("60s")
    replay = client.subscribe("orders", bookmark=quire.EPOCH)
    found = [replay.get(timeout=60).json() for _ in range(int(sys.argv[1]))]
    assert found == [{"qty": 1}] * int(sys.argv[1]), found
"""


def main(wheel: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="quire-wheel-") as directory:
        place = Path(directory)
        venv.create(place / "environment", with_pip=True)
        scripts = place / "environment" / ("Scripts" if sys.platform == "win32" else "bin")
        python = scripts / "python"

        def run(*command: str | Path) -> str:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
            return done.stdout

        run(python, "-m", "pip", "install", "--quiet", wheel.resolve())
        installed = Path(run(python, "-c", "import quire; print(quire.__file__)").strip())
        assert installed.is_relative_to(place), installed
        if shutil.which("javac") is not None and not (installed.parent / "spark/quire-spark.jar").is_file():
            sys.exit(f"{wheel.name} has no jar for Spark")
        for count in (1, 2):
            run(python, "-c", PUBLISH_AND_REPLAY, str(count))
        for example in re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M):
            run(python, "-c", example)
        version = run(scripts / "quire", "--version").strip()
        print(f"{wheel.name}: quire {version} is installed, publishes and replays")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
