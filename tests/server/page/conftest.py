"""A browser without a window, and the page in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("selenium", reason="the page's tests need selenium")

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,860",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("the page's tests need Chromium and its chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as started:
        started.set_script_timeout(30)
        yield started


class Page:
    """The page, as its user and its storage see it."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser, self.url = browser, url
        self.refused: set[str] = set()
        """How the browser's log tells of what a test provokes."""

    def open(self, turns: Any = (), **kept: str) -> None:
        """Load it anew, with these turns and other things in its storage."""
        self.browser.get(f"{self.url}/favicon.svg")
        self.run(
            "sessionStorage.clear(); localStorage.clear();"
            "for (const name in arguments[0])"
            " sessionStorage.setItem(`edgespec.${name}`, arguments[0][name])",
            kept,
        )
        if turns:
            self.run("sessionStorage.setItem('edgespec.current', 'one')")
            self.keep("one", turns)
        self.browser.get(self.url)
        self.until(lambda: self.text("#model"))

    def keep(self, name: str, turns: Any, time: int = 1) -> None:
        """Put a conversation into its storage."""
        self.run(
            "localStorage.setItem(`edgespec.conversation.${arguments[0]}`, arguments[1])",
            name,
            json.dumps({"time": time, "turns": turns}),
        )

    def limit(self, tokens: int) -> None:
        """Of answers from now on."""
        self.run(
            "const field = document.getElementById('max-tokens');"
            "field.value = arguments[0]; field.dispatchEvent(new Event('change'))",
            tokens,
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def command(self, name: str, **arguments: Any) -> Any:
        """One of the DevTools protocol."""
        return self.browser.execute_cdp_cmd(name, arguments)

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def texts(self, selector: str) -> list[str]:
        """Of all of them, shown or not, without the layout's line breaks."""
        script = "return Array.from(document.querySelectorAll(arguments[0]), e => e.textContent)"
        return self.run(script, selector)

    def figure(self, name: str) -> str:
        """One of those behind the chip, folded or not."""
        return str(self.texts(f"[data-figure={name}]")[0])

    def counted(self, origin: str) -> str:
        return str(self.texts(f"[data-origin={origin}]")[0])

    def until(self, condition: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, 60, 0.05).until(lambda _: condition())

    def kept(self, name: str) -> Any:
        """What it keeps over a reload: the conversation's turns, or a text of this name."""
        self.run("dispatchEvent(new Event('pagehide'))")
        if name == "turns":
            current = self.run("return sessionStorage.getItem('edgespec.current')")
            key = f"edgespec.conversation.{current}"
            return json.loads(self.run(f"return localStorage.getItem('{key}')"))["turns"]
        return json.loads(self.run(f"return sessionStorage.getItem('edgespec.{name}')") or "null")

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        return "".join(piece[0] for piece in self.kept("turns")[-1]["pieces"])

    @property
    def shown(self) -> str:
        """What is seen of the last answer, without reasoning."""
        return self.text(".turn:last-child .answer > .text")

    @property
    def error(self) -> str:
        """The line on what went wrong with it, if something did."""
        return self.text(".turn:last-child .error")

    @property
    def draft(self) -> str:
        """What is written and was not sent yet."""
        return self.find("#prompt").get_property("value")

    @property
    def idle(self) -> bool:
        return self.text("#send") == "Send"

    def send(self, text: str) -> None:
        self.find("#prompt").send_keys(text, Keys.ENTER)

    def ask(self, text: str) -> None:
        """Send a message and wait for the end of the answer."""
        self.send(text)
        self.until(lambda: self.idle)

    def check(self) -> None:
        """Nothing was asked of anybody else, nothing forbidden was tried, nothing went wrong."""
        own = urlsplit(self.url).netloc
        for entry in self.browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith("blob:") or urlsplit(url).netloc == own
        expected = {*self.refused, "/favicon.ico"}  # of the document that `open` begins with
        for entry in self.browser.get_log("browser"):
            known = any(words in entry["message"] for words in expected)
            assert known or entry["level"] in ("DEBUG", "INFO"), entry


@pytest.fixture(scope="session")
def opened(browser: Any) -> Callable[..., Any]:
    """`with opened(server) as page`: the page of a server, checked at the end."""

    @contextmanager
    def open_page(server: Any) -> Iterator[Page]:
        for kind in ("browser", "performance"):
            browser.get_log(kind)  # what others did
        page = Page(browser, server.url)
        page.open()
        yield page
        page.check()
        browser.get("about:blank")

    return open_page


@pytest.fixture
def page(opened: Any, server: Any) -> Iterator[Page]:
    with opened(server) as one:
        yield one


@pytest.fixture
def narrow(page: Page) -> Iterator[Page]:
    """The page on a telephone."""
    size = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    page.command("Emulation.setDeviceMetricsOverride", **size)
    yield page
    page.command("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest, page: Page) -> Iterator[str]:
    """What the system prefers."""
    feature = {"name": "prefers-color-scheme", "value": request.param}
    page.command("Emulation.setEmulatedMedia", features=[feature])
    yield request.param
    page.command("Emulation.setEmulatedMedia", features=[])


@pytest.fixture
def downloads(page: Page, tmp_path: Path) -> Path:
    page.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def turn() -> Callable[..., dict[str, Any]]:
    """`turn(TEXT...)`: a finished turn as the page keeps it, its answer in these pieces."""
    origins = ("plain", "accepted", "accepted", "corrected", "accepted", "bonus")

    def make(*texts: str, **more: Any) -> dict[str, Any]:
        pieces = [[text, origins[i % len(origins)], i] for i, text in enumerate(texts)]
        return {"prompt": "Go on.", "pieces": pieces, "state": "done", "error": None, **more}

    return make
