"""From a target to a draft: text, vocabulary, training, files, proof. Each step can be resumed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch

from edgespec._types import AnyArray, Float32Array
from edgespec.backend import Model, ParallelContext
from edgespec.distill.corpus import Batch, Batches, Conversation, Corpus, CorpusFacts
from edgespec.distill.draft import Draft, Teacher
from edgespec.distill.eagle import Eagle
from edgespec.distill.finish import Trained, finish, leave, read_draft
from edgespec.distill.medusa import Medusa
from edgespec.distill.plan import (
    ANSWER,
    BATCH_LENGTH,
    BATCH_ROWS,
    LENGTH,
    SEQUENCES,
    Plan,
    Rates,
    Report,
    Request,
    choose_prompts,
    described,
    in_words,
    make_plan,
    require_memory,
)
from edgespec.distill.prompts import Prompts
from edgespec.distill.target import (
    DraftVocabulary,
    TargetWeights,
    choose_vocabulary,
    known_vocabulary,
    tokens_of,
)
from edgespec.distill.tiny import Tiny
from edgespec.distill.train import Schedule, State, Trainer, measure_training
from edgespec.distill.writing import measure_writing, write_corpus
from edgespec.errors import EdgespecError
from edgespec.gguf.header import GGUFHeader, read_header
from edgespec.registry.cache import sha256_of
from edgespec.runtime.plan import pair
from edgespec.templates import ChatTemplate
from edgespec.tuning.exactness import fast_options

__all__ = ["make_draft"]

KINDS: dict[str, type[Draft]] = {draft.kind: draft for draft in (Tiny, Eagle, Medusa)}

_PARTS = 4  # writing and training take turns so often
_EVALUATED, _PROVED = 4, 32  # held-out batches, while training and at the end
_SAMPLE = 4096  # states that the output matrix is narrowed for


def make_draft(request: Request, report: Report, *, only_plan: bool = False) -> None:
    """Write text and train on it by turns, leaving the draft so far; prove it at the end.

    Args:
        only_plan: report the plan and stop.

    Raises:
        KeyboardInterrupt: interrupted; the same request continues where it stopped.
        UsageError: the target, the data, the draft to start from or the work folder is unusable.
        PairingError: the draft to start from belongs to another target.
        InsufficientMemoryError, EdgespecError: too little memory, or too little space on disk.
    """
    torch.set_num_threads(request.threads)
    run = _Run(request, report)
    for part in range(1, _PARTS + 1):
        plan = run.write(part / _PARTS, only_plan)
        if plan is None:
            return
        trained = run.train(plan, part / _PARTS)
        if part < _PARTS:
            greedy, sampled = leave(trained, request.output)
            report.line(
                f"Part {part} of {_PARTS}: {request.output} has {greedy[0]:.2f} of the first "
                f"proposals accepted at temperature 0, {sampled[0]:.2f} at 1."
            )
    report.now("measuring the draft")
    for line in finish(trained, request.output, request.threads):
        report.line(line)


class _Run:
    """One call, with what its steps share."""

    def __init__(self, request: Request, report: Report) -> None:
        self._request, self._report = request, report
        self._header: GGUFHeader = read_header(request.target)
        self._weights = TargetWeights(request.target)
        self._kind = KINDS[request.kind]
        self._layers = self._kind.feature_layers(self._header)
        self._sha256 = sha256_of(request.target)
        self._folder = request.work / f"{request.kind}-{request.vocabulary}"
        self._needed: set[int] = set()
        self._announced = False
        self._start = None if request.start is None else read_header(request.start)
        if self._start is not None:
            pair(self._header, self._start)
        self._corpus: Corpus

    # -- text -------------------------------------------------------------------------------

    def write(self, share: float, only_plan: bool) -> Plan | None:
        """Write this share of the text and return the plan; None if only that was asked for."""
        request = self._request
        require_memory(self._header, request.target)
        self._report.now("opening the target")
        with ExitStack() as stack:
            opened = fast_options(request.target, request.threads)
            model = stack.enter_context(Model(request.target, opened))
            template = None
            if self._header.chat_template:
                template = ChatTemplate.from_model(self._header, model.vocabulary)
            prompts = choose_prompts(request, template, model.vocabulary)
            self._needed = _special_tokens(model, template)
            width = model.embedding_length
            facts = CorpusFacts(self._sha256, width, self._layers, prompts.description)
            self._corpus = Corpus(request.work / "text", facts)
            # Text that was started with features is continued with them.
            layers = self._corpus.facts.layers
            context = stack.enter_context(
                ParallelContext(model, SEQUENCES, LENGTH, threads=request.threads, layers=layers)
            )
            self._check_logits(context)
            prompts.remember(self._corpus)
            plan = make_plan(
                self._folder / "plan.json", request.hours, lambda: self._rates(context, prompts)
            )
            if not self._announced:
                self._announced = True
                have = self._corpus.answer_tokens
                for line in described(plan, have, request.work, width, len(layers)):
                    self._report.line(line)
            if only_plan:
                return None
            goal = int(share * plan.tokens)
            write_corpus(self._corpus, context, prompts, goal, ANSWER, self._show_writing)
        self._report.line(
            f"Text: {self._corpus.answer_tokens:,} tokens of answers in "
            f"{len(self._corpus.conversations):,} conversations."
        )
        return plan

    def _check_logits(self, context: ParallelContext) -> None:
        token = context.model.vocabulary.bos or 0
        context.begin(0, np.full(3, token, np.int32))
        rows = context.step(np.zeros(1, np.int32), np.full(1, token, np.int32))
        if not self._weights.agrees(rows.hidden[0], rows.logits[0]):
            raise EdgespecError(
                f"the logits of {self._header.architecture} models are not its hidden states times "
                "its output matrix: no draft can be trained for it"
            )

    def _rates(self, context: ParallelContext, prompts: Prompts) -> Rates:
        self._report.now("measuring this machine")
        writing = measure_writing(context, prompts, ANSWER)
        size = min(self._request.vocabulary, self._header.vocabulary_size)
        stand_in = DraftVocabulary(
            np.arange(size, dtype=np.int32), self._header.vocabulary_size, 1.0
        )
        draft = self._make(stand_in)
        width = self._header.embedding_length
        tokens = self._header.vocabulary_size
        return Rates(writing, *measure_training(draft, width, len(self._layers), tokens))

    def _make(self, vocabulary: DraftVocabulary) -> Draft:
        teacher = Teacher(self._weights, vocabulary)
        return self._kind.for_target(self._header, self._weights, teacher)

    def _show_writing(self, have: int, left: float) -> None:
        self._report.now(f"writing text: {have:,} tokens, {in_words(left)} left")

    # -- training ---------------------------------------------------------------------------

    def train(self, plan: Plan, share: float) -> Trained:
        """Train this share of the plan's steps."""
        request, vocabulary = self._request, self._vocabulary()
        self._report.line(
            f"Vocabulary: {len(vocabulary.target_ids):,} of {vocabulary.target_size:,} tokens, "
            f"{vocabulary.coverage:.1%} of held-out answers."
        )
        training = self._corpus.part(held_out=False)
        if not training or not self._corpus.part(held_out=True):
            raise EdgespecError("there is too little text to train on: give more --hours")
        torch.manual_seed(0)
        draft = self._make(vocabulary)
        embeddings = self._weights.embeddings(vocabulary.target_ids)
        draft.begin(embeddings, self._sample(training, "hidden"), self._sample(training, "layers"))
        if request.start is not None:
            read_draft(draft, request.start, frozen=False)
        trainer = Trainer(
            draft,
            Batches(self._corpus, training, BATCH_ROWS, BATCH_LENGTH),
            self._held_out(_EVALUATED),
            Schedule(plan.steps, self._kind.rate),
            self._folder,
            self._show_training,
            bfloat16=plan.bfloat16,
        )
        trainer.run(int(share * plan.steps))
        return Trained(
            trainer,
            self._header,
            self._sha256,
            self._corpus,
            vocabulary,
            self._held_out(_PROVED),
            self._folder,
            {
                "kind": request.kind,
                "hours": plan.hours,
                "steps": plan.steps,
                "tokens_a_step": BATCH_ROWS * BATCH_LENGTH,
                "rate": self._kind.rate,
                "bfloat16": plan.bfloat16,
                "vocabulary": len(vocabulary.target_ids),
                "started_from": None if request.start is None else sha256_of(request.start),
            },
        )

    def _vocabulary(self) -> DraftVocabulary:
        """Return the work folder's vocabulary, chosen once: weights depend on its order."""
        size = self._header.vocabulary_size
        path = self._folder / "vocabulary.npy"
        if path.exists():
            return known_vocabulary(self._corpus, np.load(path), size)
        if self._start is not None and not self._kind.frozen:
            chosen = known_vocabulary(self._corpus, tokens_of(self._start), size)
        else:
            wanted = self._request.vocabulary - self._kind.own_tokens
            chosen = choose_vocabulary(self._corpus, wanted, size, sorted(self._needed))
        np.save(path, chosen.target_ids)
        return chosen

    def _sample(self, conversations: Sequence[Conversation], name: str) -> Float32Array:
        rows: list[AnyArray] = []
        for conversation in conversations:
            rows.append(self._corpus.rows(name, conversation)[conversation.prompt - 1 :])
            if sum(len(r) for r in rows) >= _SAMPLE:
                break
        return np.concatenate(rows).astype(np.float32)

    def _held_out(self, count: int) -> list[Batch]:
        batches = Batches(self._corpus, self._corpus.part(held_out=True), BATCH_ROWS, BATCH_LENGTH)
        return [batches.batch(i) for i in range(min(count, batches.batches))]

    def _show_training(self, state: State) -> None:
        held = ""
        if state.acceptance is not None:
            greedy = " ".join(f"{a:.2f}" for a in state.acceptance.greedy)
            sampled = " ".join(f"{a:.2f}" for a in state.acceptance.sampled)
            held = f", held-out greedy {greedy}, sampled {sampled}"
        self._report.now(
            f"training: step {state.step:,} of {state.steps:,}, loss {state.loss:.3f}, "
            f"KL {state.kl:.3f}{held}, {state.tokens_per_second:,.0f} tokens/s, "
            f"{in_words(state.seconds_left)} left"
        )


def _special_tokens(model: Model, template: ChatTemplate | None) -> set[int]:
    """Return tokens that begin or end a text, and those of the chat template itself."""
    vocabulary = model.vocabulary
    needed = set(vocabulary.end_tokens)
    needed |= {token for token in (vocabulary.bos, vocabulary.eos) if token is not None}
    if template is not None:
        rendered = template.render([{"role": "user", "content": ""}])
        needed |= {int(t) for t in vocabulary.tokenize(rendered, parse_special=True)}
    return needed
