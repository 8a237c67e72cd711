# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that tests control by its DevTools protocol, through a pipe: no port and no library is needed.

https://chromedevtools.github.io/devtools-protocol/: messages are JSON objects, each ended by a null byte, on descriptors 3
(to the browser) and 4 (from it).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ABSENT = "there is no Chromium here (make report-check installs Debian's)"
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One page in a browser of its own. A context manager; the browser ends with it.

    Args:
        width: Width of the window, px.
        height: Height of the window, px.

    Attributes:
        messages: Everything that the page wrote to the console, and its uncaught errors.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.messages: list[str] = []
        self._number = 0
        self._data = b""
        self._profile = tempfile.TemporaryDirectory(prefix="k8snet-trace-browser-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = f'exec 3<&{to_read} 4>&{to_write}; exec "$0" "$@"'
        words = [str(CHROMIUM), *_OPTIONS, f"--user-data-dir={self._profile.name}", "about:blank"]
        with open(os.devnull, "w") as nowhere:
            self._process = subprocess.Popen(
                ["bash", "-c", command, *words], pass_fds=(to_read, to_write), stdout=nowhere, stderr=nowhere
            )
        os.close(to_read)
        os.close(to_write)
        target = self._call("Target.createTarget", session="", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", session="", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._to)
        self._process.terminate()
        self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def resize(self, width: int, height: int) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        """Opens an address, and waits until its scripts have run."""
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=address)
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            pass

    def run(self, script: str) -> Any:
        """Evaluates an expression in the page, and waits for its promise. Raises AssertionError when it throws."""
        done = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, *keys: str) -> None:
        """Presses keys, by their names in KeyboardEvent.key."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """Writes a PNG of the window."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._data += more
        line, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded":
            self.messages.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "about:", "data:")):
            self.messages.append(f"request: {params['request']['url']}")
