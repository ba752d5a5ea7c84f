"""A headless Chromium, controlled over a pipe by the Chrome DevTools Protocol: open pages, run
scripts in them.
"""

import json
import os
import shutil
import subprocess
import tempfile
from itertools import count
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The path of an installed Chromium."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """Use as a context manager. `hosts`: names that resolve to 127.0.0.1."""

    def __init__(self, program: str, *, hosts: tuple[str, ...] = ()) -> None:
        rules = ",".join(f"MAP {host} 127.0.0.1" for host in hosts)
        self._command = [
            program, "--headless=new", "--disable-gpu", "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-pipe", f"--host-resolver-rules={rules}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]  # fmt: skip
        self._numbers = count(1)

    def __enter__(self) -> "Browser":
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{their_in} 4>&{their_out} {their_in}<&- {their_out}>&-'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                script,
                "chromium",
                *self._command,
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._out, self._in = os.fdopen(our_out, "wb", buffering=0), os.fdopen(our_in, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        self._out.close()
        self._in.close()
        self._profile.cleanup()

    def open(self, url: str) -> "Page":
        """A new page that has loaded."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        page = Page(
            self, self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        )
        page.ask("Page.enable")
        page.ask("Page.navigate", url=url)
        self._receive(
            lambda one: (
                one.get("method") == "Page.loadEventFired" and one.get("sessionId") == page.session
            )
        )
        return page

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        command = {
            "id": number,
            "method": method,
            "params": parameters,
            **({"sessionId": session} if session else {}),
        }
        self._out.write(json.dumps(command).encode() + b"\0")
        answer = self._receive(lambda one: one.get("id") == number)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, is_wanted: Any) -> dict[str, Any]:
        while True:
            text = bytearray()
            while (byte := self._in.read(1)) != b"\0":
                assert byte, "the browser has ended"
                text += byte
            message: dict[str, Any] = json.loads(text)
            if is_wanted(message):
                return message


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self.session = session

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self.session, **parameters)

    def run(self, script: str) -> Any:
        """The JSON value that the body of an async function returns in the page."""
        expression = f"(async () => {{ {script} }})()"
        found = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")
