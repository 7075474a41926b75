"""Compare edgespec with what people would use instead, on the same tasks in one run.

    python -m bench.peers [MODEL] [--server LLAMA_SERVER] [--draft FILE] [--head FILE]
                          [--suite FILE] [--limit N] [--minutes M] [--tokens 128]
                          [--temperature 0] [--out FILE] [--seed 0]

Peers are edgespec plain and with --draft auto, llama-cpp-python plain and with its prompt lookup,
and, where --server names the program, llama-server plain and with its kinds of speculation (with
--draft also draft-simple, with --head draft-eagle3). All get the same file, threads, context and
sampling, and are open at once; each does every task once, one after the other in random order.

Before that, every peer is tried in each of its settings on a few tasks; it runs in its default
setting and in the best one found. A ratio is edgespec with --draft auto / peer, of tokens per
second of decoding, for one task; shown are medians by category with 95% bootstrap intervals.
edgespec is compared in its default setting, and also in its best one if that is another.
"""

from __future__ import annotations

from pathlib import Path

from bench.command import Parser

parser = Parser("peers", __doc__)
parser.add_argument("model", nargs="?")
parser.add_argument("--server", type=Path, help="the program llama-server")
parser.add_argument("--draft", type=Path, help="a draft model, for draft-simple")
parser.add_argument("--head", type=Path, help="an EAGLE-3 head, for draft-eagle3")
parser.add_argument("--edgespec-draft", default="auto")
parser.add_argument("--suite", type=Path)
parser.add_argument("--limit", type=int, help="tasks of each category")
parser.add_argument("--minutes", type=float, default=30.0)
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--temperature", type=float, default=0.0)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--ctx", type=int, default=4096)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, help="a line of JSON for each task as it is done")
parser.add_argument("--json", type=Path)


def main() -> None:
    arguments = parser.parse_args()
    from bench.peers.comparison import compare_peers

    compare_peers(arguments)


if __name__ == "__main__":
    main()
