"""After the training: a draft as GGUF files, the best format kept, and what it is worth here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from edgespec import Engine, EngineOptions, GenerationLimits, SamplingParameters
from edgespec._types import AnyArray, Int32Array
from edgespec.backend import Context, ContextOptions, Model
from edgespec.benchmark.measuring import choose_tasks, own_tasks, run_task
from edgespec.control.speedup import continued, expected_speedups, fastest
from edgespec.distill.corpus import Batch, Corpus
from edgespec.distill.target import DraftVocabulary
from edgespec.distill.train import Acceptance, Trainer, measure_acceptance
from edgespec.errors import ContextFullError, UsageError
from edgespec.files import replacing
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.runtime.drafting import AnyModelDrafter, draft_with, medusa_with
from edgespec.runtime.plan import pair
from edgespec.tuning.exactness import fast_options
from edgespec.tuning.measure import measure_cost

if TYPE_CHECKING:
    from edgespec.distill.draft import Draft
    from edgespec.distill.train import Acceptance

__all__ = ["FORMATS", "Provenance", "Trained", "finish", "leave", "read_draft", "write_draft"]

FORMATS = ("Q8_0", "Q5_0", "Q4_0")


"""Formats that are tried; the better one is kept."""


_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


@dataclass(frozen=True)
class Provenance:
    """Where a draft comes from; its file says so.

    Attributes:
        target_name, target_sha256: the target's file.
        target_tokens_sha256: of the target's token texts.
        data: what it was trained on, in words.
        corpus_tokens: number of tokens of answers in the corpus.
        tokens_seen: number of tokens trained on, repetitions included.
        coverage: share of held-out answers' tokens that it can propose.
        greedy, sampled: held-out acceptance by position, see `train.Acceptance`.
        tasks: the same in answers to edgespec's own tasks, if that was measured.
        recipe: everything else that is needed to make it again.
    """

    target_name: str
    target_sha256: str
    target_tokens_sha256: str
    data: str
    corpus_tokens: int
    tokens_seen: int
    coverage: float
    greedy: list[float]
    sampled: list[float]
    recipe: dict[str, Any]
    tasks: Acceptance | None = None


def write_draft(draft: Draft, path: Path, file_format: str, provenance: Provenance) -> None:
    """Write a file that llama.cpp loads; replace an older one in one step.

    Args:
        file_format: of the matrices: "F32", "F16", "Q8_0", "Q5_0" or "Q4_0". A matrix whose rows
            are not a multiple of a block is written as F16.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path, alone=True) as partial:
        writer = GGUFWriter(partial, draft.architecture)
        writer.add_name(f"{draft.kind} draft for {provenance.target_name}")
        writer.add_layer_norm_rms_eps(draft.epsilon)
        writer.add_file_type(int(_FILE_TYPES[file_format]))
        draft.describe(writer)
        _add_provenance(writer, draft.kind, provenance)
        for name, tensor in draft.tensors().items():
            _add_tensor(writer, name, tensor, GGMLQuantizationType[file_format])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_draft(draft: Draft, path: Path, *, frozen: bool = True) -> None:
    """Load the weights of a file into a network of the same shape.

    Args:
        frozen: also those that are the target's, for the file's vocabulary.

    Raises:
        UsageError: the file has another shape.
    """
    found = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in GGUFReader(path).tensors
        if tensor.tensor_type != GGMLQuantizationType.I64
    }
    tensors = draft.tensors()
    if not frozen:
        found.update({name: tensors[name] for name in draft.frozen})
    for name, ours in tensors.items():
        if ours.dtype == np.float32 and (name not in found or found[name].shape != ours.shape):
            raise UsageError(
                f"{path.name} is not shaped like the {draft.kind} drafts that are made here "
                f"({name}): start without it"
            )
    draft.take(found)


def _add_provenance(writer: GGUFWriter, kind: str, provenance: Provenance) -> None:
    writer.add_string("edgespec.kind", kind)
    writer.add_string("edgespec.target_name", provenance.target_name)
    writer.add_string("edgespec.target_sha256", provenance.target_sha256)
    writer.add_string("edgespec.target_tokens_sha256", provenance.target_tokens_sha256)
    writer.add_string("edgespec.data", provenance.data)
    writer.add_uint64("edgespec.corpus_tokens", provenance.corpus_tokens)
    writer.add_uint64("edgespec.tokens_seen", provenance.tokens_seen)
    writer.add_float32("edgespec.coverage", provenance.coverage)
    writer.add_array("edgespec.alpha_greedy", [float(a) for a in provenance.greedy])
    writer.add_array("edgespec.alpha_sampled", [float(a) for a in provenance.sampled])
    if provenance.tasks is not None:
        for name, shares in provenance.tasks._asdict().items():
            writer.add_array(f"edgespec.alpha_tasks_{name}", shares)
    writer.add_string("edgespec.recipe", json.dumps(provenance.recipe, sort_keys=True))


def _add_tensor(
    writer: GGUFWriter, name: str, tensor: AnyArray, kind: GGMLQuantizationType
) -> None:
    if tensor.ndim < 2 or kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
        return
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % block:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, tensor.astype(np.float16))
    else:
        writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)


_LENGTH, _DEPTH, _SIZES = 512, 256, tuple(range(1, 9))
_ANSWER = 96
_BLOCK, _CONTEXT = 4, 1024
_PROMPTS = 6
_NOTHING = Acceptance([0.0], [0.0])


@dataclass(frozen=True)
class Trained:
    """A trained draft, with what its files and its record say.

    Attributes:
        trainer: has the draft.
        header, sha256: of the target.
        held_out: batches to measure acceptance on.
        folder: for the files of each format.
        recipe: how it was trained.
    """

    trainer: Trainer
    header: GGUFHeader
    sha256: str
    corpus: Corpus
    vocabulary: DraftVocabulary
    held_out: Sequence[Batch]
    folder: Path
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Costs:
    """Costs in seconds.

    Attributes:
        verify: of one evaluation of 1, 2, 3 ... tokens by the target.
        step: of drafting one token with each of the files; of all Medusa heads, a fourth.
    """

    verify: list[float]
    step: list[float]

    @property
    def v(self) -> list[float]:
        """v(1), v(2), v(3) ..."""
        return [seconds / self.verify[0] for seconds in self.verify]

    def c(self, file: int) -> float:
        """Return c of one of the files: the cost of a draft step in units of a target step."""
        return self.step[file] / self.verify[0]


@dataclass(frozen=True)
class Speeds:
    """Tokens per second of decoding, plain and with the draft."""

    temperature: float
    plain: float
    speculative: float
    acceptance_rate: float | None

    @property
    def speedup(self) -> float:
        """Speed with the draft divided by plain speed."""
        return self.speculative / self.plain if self.plain else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {**asdict(self), "speedup": self.speedup}


def leave(trained: Trained, output: Path) -> Acceptance:
    """Write the draft as it is now, without measuring its speed; return its held-out acceptance."""
    draft = trained.trainer.draft
    with trained.trainer.averaged():
        acceptance = measure_acceptance(draft, trained.held_out)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_draft(draft, output, FORMATS[0], _provenance(trained, acceptance))
    return acceptance


def finish(trained: Trained, output: Path, threads: int) -> list[str]:
    """Write `output` and, beside it, a record as JSON; return lines that report the results."""
    with trained.trainer.averaged():
        return _finish(trained, output, threads)


def _finish(trained: Trained, output: Path, threads: int) -> list[str]:
    target = trained.header.path
    paths, found = _write_all(trained)
    costs = measure_costs(target, paths, threads)
    formats = [
        _format(costs, i, path, acceptance)
        for i, (path, acceptance) in enumerate(zip(paths, found, strict=True))
    ]
    best = max(formats, key=_promised)
    kept = formats.index(best)
    tasks = measure_tasks(target, paths[kept], threads)
    provenance = _provenance(trained, found[kept], tasks)
    write_draft(trained.trainer.draft, paths[kept], FORMATS[kept], provenance)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(paths[kept], output)
    speeds = measure_speeds(target, output, _prompts(trained.corpus), threads)
    record = output.with_suffix(".json")
    facts = _record(trained, costs, formats, best, tasks, speeds)
    record.write_text(json.dumps(facts, indent=1) + "\n")
    lines = [f"{_line(entry)}{' (kept)' if entry is best else ''}" for entry in formats]
    if tasks is not None:
        lines.append(f"In answers to edgespec's own tasks: {_shares(tasks)}.")
    lines += [
        f"Measured at temperature {speed.temperature:g}: {speed.plain:.1f} tokens/s plain, "
        f"{speed.speculative:.1f} with the draft, {speed.speedup:.2f} times as fast."
        for speed in speeds
    ]
    return [*lines, f"Wrote {output} and {record}."]


def _write_all(trained: Trained) -> tuple[list[Path], list[Acceptance]]:
    """Write a file of each format; measure the acceptance of its rounded weights."""
    draft = trained.trainer.draft
    own = {name: tensor.copy() for name, tensor in draft.tensors().items()}
    paths, found = [], []
    for file_format in FORMATS:
        path = trained.folder / f"draft.{file_format}.gguf"
        write_draft(draft, path, file_format, _provenance(trained, _NOTHING))
        read_draft(draft, path)
        acceptance = measure_acceptance(draft, trained.held_out)
        draft.take(own)
        write_draft(draft, path, file_format, _provenance(trained, acceptance))
        paths.append(path)
        found.append(acceptance)
    return paths, found


def _provenance(
    trained: Trained, acceptance: Acceptance, tasks: Acceptance | None = None
) -> Provenance:
    return Provenance(
        target_name=trained.header.name,
        target_sha256=trained.sha256,
        target_tokens_sha256=trained.header.tokens_sha256,
        data=trained.corpus.facts.data,
        corpus_tokens=trained.corpus.answer_tokens,
        tokens_seen=trained.trainer.tokens,
        coverage=trained.vocabulary.coverage,
        greedy=acceptance.greedy,
        sampled=acceptance.sampled,
        tasks=tasks,
        recipe=trained.recipe,
    )


def _format(costs: Costs, number: int, path: Path, acceptance: Acceptance) -> dict[str, Any]:
    predicted = {}
    for name, alpha in (("greedy", acceptance.greedy), ("sampled", acceptance.sampled)):
        best = fastest(
            expected_speedups(continued(alpha, len(costs.v) - 1), costs.v, costs.c(number))
        )
        predicted[name] = {"k": best.k, "speedup": best.speedup}
    return {
        "format": FORMATS[number],
        "bytes": path.stat().st_size,
        "alpha_greedy": acceptance.greedy,
        "alpha_sampled": acceptance.sampled,
        "step_s": costs.step[number],
        "c": costs.c(number),
        "predicted": predicted,
    }


def _promised(entry: dict[str, Any]) -> tuple[float, float]:
    """Rank a format by predicted speed; if speculation does not pay, by acceptance for its cost."""
    speedup = sum(float(p["speedup"]) for p in entry["predicted"].values())
    alpha = entry["alpha_greedy"][0] + entry["alpha_sampled"][0]
    return speedup, alpha / (1.0 + entry["c"])


def _record(
    trained: Trained,
    costs: Costs,
    formats: list[dict[str, Any]],
    best: dict[str, Any],
    tasks: Acceptance | None,
    speeds: Sequence[Speeds],
) -> dict[str, Any]:
    return {
        "target": trained.header.name,
        "target_sha256": trained.sha256,
        "recipe": trained.recipe,
        "data": trained.corpus.facts.data,
        "corpus_tokens": trained.corpus.answer_tokens,
        "tokens_seen": trained.trainer.tokens,
        "coverage": trained.vocabulary.coverage,
        "kept": best["format"],
        "formats": formats,
        "tasks": tasks and tasks._asdict(),
        "target_step_s": costs.verify[0],
        "v": costs.v,
        "measured": [speed.as_json() for speed in speeds],
        "curve": trained.trainer.curve,
    }


def _prompts(corpus: Corpus) -> list[Int32Array]:
    chosen = corpus.part(held_out=True)[:_PROMPTS]
    return [np.array(corpus.rows("tokens", c)[: c.prompt], np.int32) for c in chosen]


def _line(entry: dict[str, Any]) -> str:
    held_out = Acceptance(entry["alpha_greedy"], entry["alpha_sampled"])
    foretold = [f"{p['speedup']:.2f} (k {p['k']})" for p in entry["predicted"].values()]
    return (
        f"{entry['format']}: {entry['bytes'] / 1e6:.1f} MB, held-out {_shares(held_out)}, "
        f"c {entry['c']:.3f}, predicted speedup {' and '.join(foretold)}"
    )


def _shares(acceptance: Acceptance) -> str:
    greedy, sampled = (" ".join(f"{a:.2f}" for a in shares) for shares in acceptance)
    return f"acceptance greedy {greedy}, at temperature 1 {sampled}"


# -- measuring ------------------------------------------------------------------------------


def measure_costs(target: Path, drafts: Sequence[Path], threads: int) -> Costs:
    """Open the target and all drafts, and time their steps."""
    options = ContextOptions(length=_LENGTH, threads=threads, outputs=max(_SIZES))
    steps = []
    with Model(target, fast_options(target, threads)) as model, Context(model, options) as context:
        verify = measure_cost(context, _DEPTH, _SIZES)
        for path in drafts:
            drafter = _open(path, context, threads)
            steps.append(drafter.stopping.token_s)
            drafter.close()
    return Costs([verify[n] for n in _SIZES], steps)


def _open(path: Path, target: Context, threads: int) -> AnyModelDrafter:
    header = read_header(path)
    if header.medusa is not None:
        return medusa_with(header, target, threads, 1)
    draft = Model(path, fast_options(path, threads))
    found = pair(target.model.header, header)
    return draft_with(draft, target, found, ContextOptions(length=_LENGTH, threads=threads), 1)


def measure_speeds(
    target: Path, draft: Path, prompts: Sequence[Int32Array], threads: int
) -> list[Speeds]:
    """Answer held-out prompts with and without the draft, at temperatures 0 and 0.8."""
    options = {"context": _CONTEXT, "threads": threads}
    with (
        Engine(target, EngineOptions(draft="none", **options)) as plain,  # type: ignore[arg-type]
        Engine(target, EngineOptions(draft=str(draft), **options)) as fast,  # type: ignore[arg-type]
    ):
        return [_compare(plain, fast, prompts, temperature) for temperature in (0.0, 0.8)]


def measure_tasks(target: Path, draft: Path, threads: int) -> Acceptance | None:
    """Measure acceptance by position in blocks of four, in answers to some of edgespec's own tasks.

    The target did not make these prompts up, just as it does not make up a user's. None if it
    cannot answer any: it has no chat template, or a very short context.
    """
    choices = EngineOptions(draft=str(draft), k=_BLOCK, context=_CONTEXT, threads=threads)
    with Engine(target, choices) as engine:
        if not engine.header.chat_template:
            return None
        found = [_accepted(engine, temperature) for temperature in (0.0, 1.0)]
    return Acceptance(*found) if all(found) else None


def _accepted(engine: Engine, temperature: float) -> list[float]:
    tried, accepted = np.zeros(_BLOCK), np.zeros(_BLOCK)
    sampling = SamplingParameters(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    for task in choose_tasks(own_tasks(), limit=1):
        with suppress(ContextFullError):
            run = run_task(engine, task, sampling, _ANSWER)
            tried[: len(run.tried)] += run.tried
            accepted[: len(run.accepted)] += run.accepted
    judged = tried > 0
    return [float(share) for share in accepted[judged] / tried[judged]]


def _compare(
    plain: Engine, fast: Engine, prompts: Sequence[Int32Array], temperature: float
) -> Speeds:
    tokens, seconds = [0, 0], [0.0, 0.0]
    proposed = accepted = 0
    for seed, prompt in enumerate(prompts):
        for which, engine in enumerate((plain, fast)):
            sampling = SamplingParameters(temperature=temperature, seed=seed)
            stream = engine.generate(prompt, sampling, GenerationLimits(max_tokens=_ANSWER))
            statistics = stream.result.statistics
            tokens[which] += statistics.emitted
            seconds[which] += statistics.decode_s
            if engine is fast:
                proposed += statistics.proposed
                accepted += statistics.accepted
    rates = [count / took if took else 0.0 for count, took in zip(tokens, seconds, strict=True)]
    return Speeds(temperature, rates[0], rates[1], accepted / proposed if proposed else None)
