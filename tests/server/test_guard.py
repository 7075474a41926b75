"""Who gets in: by Host, Origin and key; and what every response forbids a browser."""

from __future__ import annotations

import logging
import socket
from typing import Any

import httpx
import pytest

from edgespec.errors import UsageError
from edgespec.server.guard import Access

FRIEND = "https://friend.example:8443"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def keyed(serve: Any) -> Any:
    with serve(access=Access(api_key=KEY, origins=(FRIEND,))) as running:
        yield running


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:80", "[::1]:8080"])
def test_its_own_names(server: Any, host: str) -> None:
    assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[::1", "10.0.0.1", ""]
)
def test_foreign_names(server: Any, host: str) -> None:
    for path in ("/health", "/", "/v1/models", "/app.js"):
        response = httpx.get(f"{server.url}{path}", headers={"Host": host})
        assert response.status_code == 403
        assert "Host" in response.json()["error"]["message"]


def test_no_name_at_all(server: Any) -> None:
    with socket.create_connection(server.address, timeout=30) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert b"403" in connection.makefile("rb").readline()


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://["]
)
def test_pages_of_others(server: Any, origin: str) -> None:
    headers = {"Origin": origin}
    assert server.post("/v1/chat/completions", CHAT, headers=headers).status_code == 403
    assert httpx.get(f"{server.url}/metrics", headers=headers).status_code == 403
    asked = {**headers, "Access-Control-Request-Method": "POST"}
    preflight = httpx.options(f"{server.url}/v1/chat/completions", headers=asked)
    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers


def test_its_own_page(server: Any) -> None:
    headers = {"Origin": server.url}
    assert server.post("/v1/chat/completions", CHAT, headers=headers).status_code == 200


def test_pages_that_are_allowed(keyed: Any) -> None:
    asked = {
        "Origin": FRIEND,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    preflight = httpx.options(f"{keyed.url}/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == FRIEND
    headers = {"Origin": FRIEND, "Authorization": f"Bearer {KEY}", "Host": "friend.example:8443"}
    answer = keyed.post("/v1/chat/completions", CHAT, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == FRIEND
    refused = keyed.post("/v1/chat/completions", CHAT, headers={"Origin": FRIEND})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == FRIEND  # so that its page can read it


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer é"]
)
def test_without_the_key(keyed: Any, header: str | None, caplog: Any) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    with caplog.at_level(logging.DEBUG):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/x"),
            ("GET", "/metrics"),
        ):
            response = httpx.request(method, keyed.url + path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
            assert KEY not in response.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("path", ["/models", "/x", "/tokenize", "/v1/models", "/docs"])
def test_nothing_but_the_page_is_open(keyed: Any, path: str) -> None:
    assert httpx.get(keyed.url + path).status_code == 401
    assert httpx.get(keyed.url + path, headers={"X-Api-Key": KEY + "x"}).status_code == 401
    assert httpx.get(keyed.url + path, headers={"X-Api-Key": KEY}).status_code != 401


def test_refusals_are_logged_once(serve: Any, caplog: Any) -> None:
    with serve() as running, caplog.at_level(logging.WARNING):
        for _ in range(3):
            httpx.get(f"{running.url}/health", headers={"Origin": "https://page.example"})
            httpx.get(f"{running.url}/health", headers={"Host": "name.example"})
        for number in range(40):
            httpx.get(f"{running.url}/health", headers={"Origin": f"https://{number}.example"})
    said = [record.getMessage() for record in caplog.records]
    assert sum("https://page.example" in one and "--allow-origin" in one for one in said) == 1
    assert sum("name.example" in one for one in said) == 1
    assert len(said) < 20


def test_with_the_key(keyed: Any) -> None:
    assert keyed.client(KEY).models.list().data
    for path in ("/health", "/", "/openapi.json"):
        assert httpx.get(keyed.url + path).status_code == 200
    assert httpx.get(f"{keyed.url}/openapi.json").json()["security"] == [{"key": []}]


def test_what_browsers_are_told(server: Any) -> None:
    for path in ("/", "/health", "/nothing", "/v1/models", "/v1/nothing"):
        headers = httpx.get(server.url + path).headers
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_and_nothing_else(server: Any) -> None:
    page = httpx.get(server.url)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "/%00", "/x" * 3000, "/page"):
        response = httpx.get(server.url + path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert httpx.post(server.url).status_code == 405
    assert httpx.get(f"{server.url}/v1/chat/completions").status_code == 405


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": "0.0.0.0"}, "EDGESPEC_API_KEY"),
        ({"host": "::"}, "EDGESPEC_API_KEY"),
        ({"host": "192.168.1.5"}, "EDGESPEC_API_KEY"),
        ({"host": "example.org"}, "EDGESPEC_API_KEY"),
        ({"api_key": ""}, "API key"),
        ({"api_key": "with space"}, "API key"),
        ({"api_key": "schlüssel"}, "API key"),
        ({"api_key": "good", "more_keys": ("with space",)}, "API key"),
        ({"origins": ["*"]}, "no origin"),
        ({"origins": ["example.org"]}, "no origin"),
        ({"origins": ["https://example.org/"]}, "no origin"),
        ({"origins": ["http://["]}, "no origin"),
        ({"origins": ["https://*.example.org"]}, "no origin"),
        ({"origins": ["file://"]}, "no origin"),
        ({"origins": ["null"]}, "no origin"),
        ({"origins": ["https://ada@example.org"]}, "no origin"),
        ({"origins": ["https://example.org:port"]}, "no origin"),
        ({"origins": ["HTTPS://Example.org"]}, "give https://example.org"),
        ({"origins": ["https://example.org:443"]}, "give https://example.org"),
        ({"origins": ["http://m\xfcller.example:8080"]}, "xn--mller-kva.example:8080"),
    ],
)
def test_access_that_is_refused(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Access(**given)


def test_other_machines_need_the_key_under_any_name() -> None:
    access = Access("0.0.0.0", KEY)
    assert access.knows_host("laptop.local:8080")
    assert not access.knows_origin("https://evil.example", "laptop.local:8080")
    assert access.knows_key(f"bearer  {KEY}") and not access.knows_key(None)


def test_each_user_has_a_key() -> None:
    access = Access("0.0.0.0", "one", more_keys=("two",))
    assert access.key_of("Bearer one") == access.key_of(None, "one") == "one"
    assert access.key_of("Bearer two") == access.key_of("Basic x", "two") == "two"
    assert access.key_of("Bearer three") is access.key_of(None) is access.key_of("one") is None
    assert Access().key_of(None) == Access().key_of("Bearer any") == ""
