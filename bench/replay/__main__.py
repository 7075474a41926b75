"""What would have been faster? Replay recorded texts under other policies.

    edgespec run -p "..." --temperature 0 --trace t.jsonl
    python -m bench.replay t.jsonl [MORE ...] [--draft FILE --model MODEL] [--json FILE]

The policies are plain decoding; prompt lookup and a draft model, each at every fixed k; and the
adaptive policy of edgespec. Times are the recorded cost table, scaled by the recorded cycles.
Regret is the share of speed lost against the fixed policy that was best in hindsight.

The trace knows a draft model only where it was asked; elsewhere it is taken to be right as often as
it was there. With --draft its agreement with every token of greedy texts is evaluated.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.command import Parser

parser = Parser("replay", __doc__)
parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
parser.add_argument("--draft", help="a draft model: evaluate its agreement with the texts")
parser.add_argument("--model", help="the target, for --draft; by default the recorded name")
parser.add_argument("--json", type=Path)


def main() -> None:
    arguments = parser.parse_args()
    import numpy as np

    from bench.replay.policies import costs_of, outcomes, recorded_draft, show, summarize
    from bench.replay.recorded import read_traces
    from edgespec.runtime.loading import warm_up

    generations = read_traces(arguments.traces)
    if not generations:
        raise SystemExit("no generation in these traces")
    warm_up()
    costs = [costs_of(generation, generations) for generation in generations]
    if arguments.draft:
        from bench.replay.agreement import known_drafts

        model = arguments.model or generations[0].start["model"]
        drafts = known_drafts(model, arguments.draft, generations)
    else:
        drafts = [recorded_draft(g, c) for g, c in zip(generations, costs, strict=True)]
    parts = [outcomes(*each) for each in zip(generations, costs, drafts, strict=True)]
    summary = summarize(generations, parts, costs)
    known = [draft.known for draft in drafts if draft is not None]
    summary["draft_known"] = float(np.mean(known)) if known else None
    show(summary)
    if known:
        print(f"The draft's agreement is known at {np.mean(known):.0%} of the positions.")
    if arguments.json:
        summary["generations"] = [
            {
                "id": generation.start["id"],
                "rule": generation.start["rule"],
                "tokens": generation.kept,
                "recorded_s": generation.seconds,
                "seconds": {name: outcome.seconds for name, outcome in part.items()},
            }
            for generation, part in zip(generations, parts, strict=True)
        ]
        arguments.json.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
