"""A headless Chromium over its DevTools pipe: opens a page, asks it questions, takes pictures. Standard library only.

browser.py PAGE.html OUT.png [WIDTH [HEIGHT]]    takes a picture, as docs/figures/report.png
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A tab of the browser. Commands and answers are JSON objects with a zero byte behind each, on descriptors 3 and
    4."""

    def __init__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="nearstep-browser-", ignore_cleanup_errors=True)
        # Descriptors 3 and 4 are taken first, so that neither our pipes nor those of subprocess get them.
        taken = [os.open(os.devnull, os.O_RDONLY)]
        while taken[-1] < 4:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        command_read, self._commands = os.pipe()
        self._answers, answer_write = os.pipe()

        def connect():
            os.dup2(command_read, 3)
            os.dup2(answer_write, 4)

        # Root has no sandbox; /dev/shm is small in some containers.
        self._process = subprocess.Popen(
            [
                find(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._profile.name}",
                "about:blank",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for descriptor in (*taken, command_read, answer_write):
            os.close(descriptor)
        self._rest, self._last, self.events = b"", 0, []
        target = next(one for one in self._call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _read(self):
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _call(self, method, **parameters):
        self._last += 1
        session = {"sessionId": self._session} if getattr(self, "_session", None) else {}
        os.write(
            self._commands,
            json.dumps({"id": self._last, "method": method, "params": parameters, **session}).encode() + b"\0",
        )
        while True:
            message = self._read()
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def open(self, url, width, height=900, scale=1):
        """Loads the page in a window of this size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )
        self.events.clear()
        self._call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, expression):
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def errors(self):
        """Returns the errors that the page has reported since it was opened."""
        return [
            event["params"] for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
        ]

    def requests(self):
        """The addresses that the page loaded."""
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path, height=None):
        """Writes a PNG of the page; `height`: only so much of it."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height or 1e9, size["height"]), "scale": 1}
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        os.close(self._commands)
        self._process.kill()
        self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()


if __name__ == "__main__":
    source, target, *size = sys.argv[1:]
    width, height = (*map(int, size), *(1280, 0)[len(size) :])
    tab = Browser()
    tab.open(pathlib.Path(source).resolve().as_uri(), width)
    tab.picture(pathlib.Path(target), height)
    tab.close()
