"""How long a server keeps others waiting while it refuses bodies of 4 MiB.

    python -m bench.wrong_bodies --bodies 300 --senders 4

A server of its own is started; this process sends the bodies, and another one asks for /health all
the time, so that nothing but the server is measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from bench.command import Parser

_SIZE = (4 << 20) - 1000
_CHAT = "/v1/chat/completions"
_ITEMS = {
    ("/v1/completions", "prompt"): "1.5,",
    (_CHAT, "messages"): "0,",
    (_CHAT, "stop"): "0,",
    ("/v1/responses", "input"): "[],",
    ("/v1/responses", "tools"): "{},",
    ("/detokenize", "tokens"): '"a",',
}
_ASK = """
import sys, time, httpx
slowest = 0.0
with httpx.Client(timeout=60) as client:
    while not sys.stdin.closed:
        began = time.monotonic()
        client.get(sys.argv[1]).raise_for_status()
        slowest = max(slowest, time.monotonic() - began)
        print(slowest, flush=True)
        time.sleep(0.02)
"""


def main() -> None:
    parser = Parser("wrong_bodies", __doc__ or "")
    parser.add_argument("--bodies", type=int, default=300)
    parser.add_argument("--senders", type=int, default=4)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "edgespec", "serve", "--port", "0", "--draft", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            print(json.dumps(measure(address[0], arguments.bodies, arguments.senders)))
        finally:
            server.terminate()


def measure(url: str, bodies: int, senders: int) -> dict[str, float]:
    """Return the slowest answer of /health in seconds, idle and beside the bodies."""
    idle = slowest(url, lambda: httpx.get(f"{url}/health"))

    def send(number: int) -> None:
        (path, field), item = list(_ITEMS.items())[number % len(_ITEMS)]
        body = f'{{"{field}": [{item * (_SIZE // len(item))}0]}}'.encode()
        assert httpx.post(url + path, content=body, timeout=600).status_code == 400

    def send_all() -> None:
        with ThreadPoolExecutor(senders) as pool:
            list(pool.map(send, range(bodies)))

    return {"bodies": bodies, "idle_s": round(idle, 3), "busy_s": round(slowest(url, send_all), 3)}


def slowest(url: str, work: Callable[[], object]) -> float:
    """Return the seconds of the slowest answer of /health while something is done."""
    asking = [sys.executable, "-c", _ASK, f"{url}/health"]
    with subprocess.Popen(asking, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            work()
        finally:
            process.terminate()
        return float(process.stdout.read().split()[-1])


if __name__ == "__main__":
    main()
