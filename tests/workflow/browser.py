"""A headless Chromium, spoken to over a pair of pipes: nothing is installed, and no driver is needed.

Debian's package is fetched (apt-get checks its signature) and unpacked into a folder where none is on the PATH.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium-headless-shell", "fonts-dejavu-core")


class Unavailable(Exception):
    """There is no browser to be had; the message says why."""


def executable(folder: Path) -> tuple[str, dict[str, str]]:
    """A browser's path, and the environment that it needs.

    Raises:
        Unavailable: none is here, and none can be fetched.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found, dict(os.environ)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable("no Chromium is here, nor apt-get to fetch one")
    state, cache, root = folder / "apt/state", folder / "apt/cache", folder / "root"
    for path in (state / "lists/partial", cache / "archives/partial"):
        path.mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-q", "-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "APT::Sandbox::User="]
    apt += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
    wanted = ["install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES]
    for command in ([*apt, "update"], [*apt, *wanted]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"`{' '.join(command)}` failed:\n{done.stdout[-800:]}")
    for package in sorted((cache / "archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    shell = next(root.glob("usr/lib/chromium*/chromium-headless-shell"))
    libraries = sorted({str(path.parent) for path in root.rglob("*.so*")})
    return str(shell), {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


class Navigated(Exception):
    """The page was left while it was asked."""


class Page:
    """One tab. What it asked the network for and what it complained of stand in `requests` and `errors`."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._last = write, read, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1400, height=1000, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer. Raises Navigated: the page is being left."""
        self._last += 1
        session = {} if self._session is None else {"sessionId": self._session}
        os.write(
            self._write, json.dumps({"id": self._last, "method": method, "params": params, **session}).encode() + b"\0"
        )
        while True:
            message = self._next()
            if message.get("id") == self._last:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise Navigated
                assert "error" not in message, message
                return dict(message["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise Unavailable("the browser ended")
            self._rest += more
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        return message

    def open(self, file: Path) -> None:
        """Show a file and wait until it is there."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.wait("document.readyState == 'complete'")

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + seconds

        def holds() -> Any:
            with suppress(Navigated):
                return self.evaluate(expression)

        while not holds():
            assert time.monotonic() < deadline, f"{expression}: not true after {seconds} s; {self.errors}"
            time.sleep(0.1)

    def screenshot(self, file: Path) -> None:
        """What is to be seen."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a browser that lives as long as the block.

    Raises:
        Unavailable: there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program, environment = executable(folder)
    commands, answers = os.pipe(), os.pipe()
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}/profile",
    ]
    script = f'exec "$0" "$@" 3<&{commands[0]} 4>&{answers[1]}'
    running = subprocess.Popen(
        ["bash", "-c", script, program, *flags],
        pass_fds=(commands[0], answers[1]),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "browser.log").open("w"),
    )
    os.close(commands[0])
    os.close(answers[1])
    try:
        yield Page(commands[1], answers[0])
    finally:
        running.kill()
        running.wait()
        os.close(commands[1])
        os.close(answers[0])
