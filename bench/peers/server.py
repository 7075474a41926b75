"""llama-server, as a separate program that is asked over loopback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import httpx

from bench.peers.peer import Answer, Messages, Peer, Setup

__all__ = ["ServerPeer"]

_START_S = 120.0


class ServerPeer(Peer):
    """One process in one setting; the timings are those it reports."""

    def __init__(self, setup: Setup, program: Path, name: str, flags: Sequence[str]) -> None:
        super().__init__(setup, f"llama-server {name}", flags, _version(program))
        self._program = program

    def __enter__(self) -> ServerPeer:
        port, threads = str(_free_port()), str(self.setup.threads)
        words = [str(self._program), "-m", str(self.setup.model), "-c", str(self.setup.context)]
        words += ["-t", threads, "-tb", threads, "-np", "1", "--host", "127.0.0.1", "--port", port]
        words += ["--cache-ram", "0", "--no-webui", *self.flags]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600.0)
        self._wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait()

    def answer(self, messages: Messages, temperature: float, seed: int, tokens: int) -> Answer:
        reply = self._client.post(
            "/v1/chat/completions",
            json={
                "messages": list(messages),
                "temperature": temperature,
                "seed": seed,
                "max_tokens": tokens,
                "cache_prompt": len(messages) > 1,
            },
        )
        reply.raise_for_status()
        data = reply.json()
        timings, text = data["timings"], data["choices"][0]["message"]["content"] or ""
        count = max(2, timings["predicted_n"])
        decode_s = timings["predicted_ms"] / 1000 * count / (count - 1)  # as for the binding
        return Answer(text, count, decode_s, timings["prompt_ms"] / 1000)

    def _wait(self) -> None:
        deadline = monotonic() + _START_S
        while monotonic() < deadline and self._process.poll() is None:
            try:
                if self._client.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            sleep(0.2)
        self._process.kill()
        raise SystemExit(f"{self._program} {' '.join(self.flags)} did not start")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _version(program: Path) -> str:
    run = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    lines = (run.stderr + run.stdout).splitlines()
    return next((line for line in lines if line.startswith("version")), "unknown")
