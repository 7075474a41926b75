"""Choose each peer's best setting, give all of them the same tasks, and compare."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any

import numpy as np

from bench.peers.binding import BindingPeer
from bench.peers.ours import EdgespecPeer
from bench.peers.peer import Answer, Peer, Setup
from bench.peers.server import ServerPeer
from edgespec.benchmark.measuring import Task, choose_tasks, machine_facts, own_tasks, read_tasks
from edgespec.benchmark.results import median_interval
from edgespec.registry.resolve import resolve

__all__ = ["compare_peers"]

OURS = "edgespec auto"
BEST = f"{OURS}, best setting"
_TRIAL_TASKS = 3


def make_peers(setup: Setup, arguments: argparse.Namespace) -> list[list[Peer]]:
    """Return the settings of each kind of peer, the default first."""
    kinds: list[list[Peer]] = [
        [EdgespecPeer(setup, "plain", "none", flash) for flash in (False, True)],
        [EdgespecPeer(setup, "auto", arguments.edgespec_draft, flash) for flash in (False, True)],
        [BindingPeer(setup, "plain", flash) for flash in (False, True)],
        [BindingPeer(setup, "prompt lookup", False, count) for count in (10, 2, 4)],
    ]
    if arguments.server is None:
        return kinds
    flags: dict[str, list[list[str]]] = {"plain": [[], ["-fa", "off"], ["-fa", "on"]]}
    for kind in ("ngram-simple", "ngram-map-k", "ngram-mod"):
        flags[kind] = [["--spec-type", kind], ["--spec-type", kind, "-fa", "off"]]
    drafts = {"draft-simple": arguments.draft, "draft-eagle3": arguments.head}
    for kind, draft in drafts.items():
        if draft is not None:
            base = ["--spec-type", kind, "-md", str(draft)]
            flags[kind] = [base] + [[*base, "--spec-draft-n-max", n] for n in ("1", "2", "4")]
    for kind, settings in flags.items():
        kinds.append([ServerPeer(setup, arguments.server, kind, each) for each in settings])
    return kinds


def choose_best(kinds: Sequence[Sequence[Peer]], tasks: Sequence[Task], work: Any) -> list[Peer]:
    """Choose each kind's default setting, and its fastest one if that is another."""
    chosen = []
    for settings in kinds:
        default = settings[0]
        speeds = {peer: _trial(peer, tasks, work) for peer in settings} if settings[1:] else {}
        best = max(speeds, key=lambda peer: speeds[peer], default=default)
        chosen.append(default)
        if best is not default:
            best.name += ", best setting"
            chosen.append(best)
        for peer, speed in speeds.items():
            print(f"tried {peer.name} {' '.join(peer.flags)}: {speed:.1f} tokens/s", flush=True)
    return chosen


def _trial(peer: Peer, tasks: Sequence[Task], work: Any) -> float:
    with peer:
        answers = [converse(peer, task, work.temperature, work.seed, work.tokens) for task in tasks]
    return sum(a.tokens for a in answers) / sum(a.decode_s for a in answers)


def converse(peer: Peer, task: Task, temperature: float, seed: int, tokens: int) -> Answer:
    """Do all turns of a task; add up tokens and seconds, and join the texts."""
    messages: list[dict[str, str]] = []
    total = Answer("", 0, 0.0, 0.0)
    for turn in task.turns:
        messages.append({"role": "user", "content": turn})
        answer = peer.answer(messages, temperature, seed, tokens)
        messages.append({"role": "assistant", "content": answer.text})
        total = total + answer
    return total


def run(peers: Sequence[Peer], tasks: Sequence[Task], work: Any) -> list[dict[str, Any]]:
    """Do every task with every peer, and return a row for each task."""
    rows = []
    deadline = monotonic() + 60 * work.minutes
    generator = random.Random(work.seed)
    with ExitStack() as stack:
        for peer in peers:
            stack.enter_context(peer)
            converse(peer, Task("warm-up", "", ("Say hello.",)), 0.0, 0, 16)
        for task in tasks:
            if monotonic() > deadline:
                break
            row: dict[str, Any] = {"task": task.name, "category": task.category}
            for peer in generator.sample(list(peers), len(peers)):
                answer = converse(peer, task, work.temperature, work.seed, work.tokens)
                row[peer.name] = answer._asdict()
            rows.append(row)
            if work.out:
                with work.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return rows


def table(peers: Sequence[Peer], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each peer its speed, and ours / its, by category and over all."""
    lines = []
    for peer in peers:
        line: dict[str, Any] = {"peer": peer.name, "flags": peer.flags, "version": peer.version}
        for category in (*dict.fromkeys(row["category"] for row in rows), "all"):
            part = [row for row in rows if category in ("all", row["category"])]
            speed = [row[peer.name]["tokens"] / row[peer.name]["decode_s"] for row in part]
            same = [row[peer.name]["text"] == row[OURS]["text"] for row in part]
            line[category] = {
                "tokens_per_second": float(np.median(speed)),
                "same_texts": sum(same) / len(same),
            }
            for ours in (OURS, BEST):
                if ours in part[0]:
                    own = [row[ours]["tokens"] / row[ours]["decode_s"] for row in part]
                    line[category][ours] = median_interval(np.divide(own, speed))
        lines.append(line)
    return lines


def show(lines: Sequence[dict[str, Any]]) -> None:
    categories = [key for key in lines[0] if key not in ("peer", "flags", "version")]
    width = max(len(line["peer"]) for line in lines)
    for category in categories:
        ours = [name for name in (OURS, BEST) if name in lines[0][category]]
        heads = "  ".join(f"{name + ' / it':34}" for name in ours)
        print(f"\n{category:{width}}  tokens/s  {heads}  same text")
        for line in lines:
            cell = line[category]
            ratios = [cell[name] for name in ours]
            cells = [f"{r['median']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for r in ratios]
            shown = "  ".join(f"{cell:34}" for cell in cells)
            print(
                f"{line['peer']:{width}}  {cell['tokens_per_second']:8.1f}  {shown}  "
                f"{cell['same_texts']:.0%}"
            )


def compare_peers(work: argparse.Namespace) -> None:
    """Run and show what the command line asks for."""
    path = resolve(work.model).path
    setup = Setup(path, work.threads, work.ctx)
    tasks = choose_tasks(read_tasks(work.suite) if work.suite else own_tasks(), limit=work.limit)
    peers = choose_best(make_peers(setup, work), tasks[:_TRIAL_TASKS], work)
    rows = run(peers, tasks, work)
    lines = table(peers, rows)
    show(lines)
    if work.json:
        report = {"machine": machine_facts(), "settings": vars(work), "peers": lines, "rows": rows}
        work.json.write_text(json.dumps(report, indent=2, default=str) + "\n")
