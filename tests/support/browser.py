"""A headless Chromium that tests drive over a pipe, without a driver of another project.

The tests skip where no Chromium is installed. `$QUIRE_CHROMIUM` names the program.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from support.waiting import PATIENCE

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")

#: The keys that tests press, besides letters: name, code of Windows, text.
KEYS: Final = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "End": (35, ""),
    "Home": (36, ""),
    " ": (32, " "),
}

#: Elements with a role, by their accessible names.
_FIND: Final = """
(name, role) => {
  const selectors = {button: "button", link: "a[href]", field: "input, select, textarea", summary: "summary"};
  const labelOf = (each) => each.labels?.[0]?.querySelector("span")?.textContent;
  const nameOf = (each) => (each.getAttribute("aria-label") ?? labelOf(each) ?? each.textContent).trim();
  const open = document.querySelector("dialog[open]") ?? document;
  return [...open.querySelectorAll(selectors[role])].find((each) => nameOf(each) === name && each.offsetParent !== null);
}
"""


def program() -> str | None:
    """The Chromium of this machine; `None`: there is none."""
    named = os.environ.get("QUIRE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A running Chromium."""

    def __init__(self, directory: Path) -> None:
        """`directory`: a new one for its profile."""
        path = program()
        assert path is not None
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={directory}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--force-color-profile=srgb",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        # The program talks over the descriptors 3 and 4.
        shell = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, path, *options],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        os.close(read_commands)
        os.close(write_answers)
        self._count = 0
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._listeners: dict[str, Callable[[str, dict[str, Any]], None]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._commands)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        with self._lock:
            self._count += 1
            number = self._count
            answer = self._waiting[number] = queue.Queue()
            command = {"id": number, "method": method, "params": parameters}
            if session is not None:
                command["sessionId"] = session
            os.write(self._commands, json.dumps(command).encode() + b"\0")
        told = answer.get(timeout=PATIENCE)
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']['message']}")
        result: dict[str, Any] = told["result"]
        return result

    def _read(self) -> None:
        rest = b""
        while data := os.read(self._answers, 1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for message in messages:
                told = json.loads(message)
                if "id" in told:
                    self._waiting.pop(told["id"]).put(told)
                elif (listener := self._listeners.get(told.get("sessionId", ""))) is not None:
                    listener(told["method"], told["params"])
        os.close(self._answers)

    @contextmanager
    def page(
        self, *, width: int = 1366, height: int = 768, theme: str = "light", phone: bool = False
    ) -> Iterator[Page]:
        """A new tab, in its own profile."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        self._listeners[session] = page.heard
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.send(f"{domain}.enable")
            page.send(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=phone,
            )
            page.send(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}]
            )
            yield page
        finally:
            self._listeners.pop(session, None)
            self.send("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        #: The addresses of all requests.
        self.requests: list[str] = []
        #: Errors and warnings of the log, and exceptions.
        self.errors: list[str] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command for the tab."""
        return self._browser.send(method, self._session, **parameters)

    def heard(self, method: str, parameters: dict[str, Any]) -> None:
        """Takes an event of the tab."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(str([each.get("value") for each in parameters["args"]]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                entry = parameters["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def goto(self, url: str) -> None:
        """Loads a page."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression, also of a promise."""
        told = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"]["exception"]["description"])
        return told["result"].get("value")

    def wait(self, condition: str, patience: float = PATIENCE) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self.evaluate(f"(async () => Boolean(await {condition}))()"):
                return
            # Pages are drawn 60 times a second.
            self.evaluate("new Promise((done) => setTimeout(done, 15))")
        raise AssertionError(f"it did not become true: {condition}\n{self.text()[:2000]}\n{self.errors}")

    def text(self) -> str:
        """The visible text."""
        text: str = self.evaluate("document.body.innerText")
        return text

    def wait_text(self, text: str) -> None:
        """Waits until the page shows a text."""
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def has(self, name: str, role: str = "button") -> bool:
        """Whether there is a control of this name."""
        return bool(self.evaluate(f"Boolean(({_FIND})({json.dumps(name)}, {json.dumps(role)}))"))

    def click(self, name: str, role: str = "button") -> None:
        """Clicks a control with the mouse, when it is there and not disabled."""
        found = f"({_FIND})({json.dumps(name)}, {json.dumps(role)})"
        self.wait(f"(e => e && !e.disabled)({found})")
        # The page may still move while its parts are loaded.
        self.wait(
            f"(async (find) => {{ find()?.scrollIntoView({{block: 'nearest'}});"
            " const at = () => { const r = find()?.getBoundingClientRect(); return `${r?.x} ${r?.y}`; };"
            " const before = at(); await new Promise((done) => setTimeout(done, 60)); return before === at(); })"
            f"(() => {found})"
        )
        place = self.evaluate(
            f"(e => {{ const r = e.getBoundingClientRect(); return [r.x + Math.min(r.width, 60) / 2, r.y + r.height / 2]; }})"
            f"({found})"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def press(self, *keys: str) -> None:
        """Presses keys one after the other."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key.upper()) if len(key) == 1 else 0, key))
            about: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "text": text}
            if len(key) == 1 and key.isupper():
                about["modifiers"] = 8
            self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **about)
            self.send("Input.dispatchKeyEvent", type="keyUp", **(about | {"text": ""}))

    def type(self, text: str) -> None:
        """Types a text into the field that has the focus."""
        self.send("Input.insertText", text=text)

    def focused(self) -> str:
        """The accessible name of the element that has the focus."""
        name: str = self.evaluate(
            "(e => (e.getAttribute('aria-label') ?? e.labels?.[0]?.querySelector('span')?.textContent ?? e.textContent).trim())"
            "(document.activeElement)"
        )
        return name

    def tab_to(self, name: str, *, most: int = 80) -> None:
        """Presses Tab until the control of this name has the focus."""
        for _ in range(most):
            self.press("Tab")
            if self.focused() == name:
                return
        raise AssertionError(f"{name!r} cannot be reached with Tab")

    def picture(self, path: Path) -> None:
        """Writes what the page looks like to a PNG file."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
