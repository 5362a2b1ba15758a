"""Makes the pictures of docs/how-to/console.md from the demo: `python tests/console_pictures.py`.

It needs Chromium, and takes two minutes, so that the charts have a history.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from support.browser import Browser

PLACE: Final = Path(__file__).parent.parent / "docs/how-to"
#: The pictures: file, address of the page, a text that it has when it is complete, and its height.
PICTURES: Final = (
    ("console.png", "overview", "Overview", 760),
    ("console-queue.png", "queues#JOBS", "Leases, oldest first", 1000),
)
#: Seconds of traffic before the pictures.
TRAFFIC: Final = 110


def main() -> None:
    command = [sys.executable, "-m", "quire", "demo", "--flights", "5000", "--no-spark", "--stay"]
    with (
        tempfile.TemporaryDirectory() as profile,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo,
    ):
        try:
            assert demo.stdout is not None
            found = next(
                filter(None, (re.search(r"console:\s+(http://[\d.:]+)", line) for line in demo.stdout))
            )
            time.sleep(TRAFFIC)
            with Browser(Path(profile)) as browser:
                for file, address, text, height in PICTURES:
                    with browser.page(width=1280, height=height) as page:
                        page.goto(f"{found[1]}/console/{address}")
                        page.wait_text(text)
                        # The charts are drawn with the next answers.
                        time.sleep(5)
                        page.picture(PLACE / file)
        finally:
            demo.terminate()


if __name__ == "__main__":
    main()
