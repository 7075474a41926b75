"""Check that a draft's tokens mean the same as its target's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gguf import TokenType

from edgespec.errors import PairingError
from edgespec.gguf.draft_metadata import EagleHead, MedusaHeads, ReducedVocabulary
from edgespec.gguf.header import GGUFHeader

__all__ = ["Pairing", "check_pairing"]

_SHOWN = 24
_ORDINARY = frozenset((int(TokenType.NORMAL), int(TokenType.BYTE)))
# As in [PAD151936], <unused0>, <|reserved_special_token_3|>, <|dummy_85|>.
_PADDING = re.compile(
    r"[<\[{(].*(pad|unused|reserved|dummy|extra|place.?holder|blank).*[>\]})]",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Pairing:
    """A draft fits: token ids below ``shared_vocabulary`` mean the same in both models.

    For a draft with a reduced vocabulary, that is the number of tokens it has.
    """

    shared_vocabulary: int
    reason: str


def check_pairing(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    """Check that *draft* can propose tokens for *target*.

    The vocabularies must be identical except for padding at the end of one or both: tokens that
    are unused, special, or named as padding. The kind of tokenizer and the ids of the special
    tokens must be the same.

    The tokens of a reduced vocabulary must be among the target's, and the layers and the width
    that an EAGLE-3 head reads must be the target's; so must the width of what Medusa heads read.

    Raises PairingError, naming what differs; for vocabularies the first token id and both texts.
    """
    if target.drafts_only:
        raise PairingError(f"{target.path.name} is a draft itself: it cannot be a target")
    if draft.reduced:
        _check_made_for(target, draft.reduced)
        known, size = draft.reduced.known, target.vocabulary_size
        return Pairing(known, f"it has {known:,} of the target's {size:,} tokens")
    if draft.medusa:
        return _check_medusa(target, draft.medusa)
    if draft.eagle:
        return _check_eagle(target, draft, draft.eagle)
    return _check_vocabularies(target, draft)


def _check_vocabularies(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    _check_tokenizers(target, draft)
    if target.same_tokens(draft):
        pairing = Pairing(target.vocabulary_size, "the vocabularies are identical")
    else:
        pairing = _check_tokens(target, draft)
    _check_special(target, draft)
    return pairing


def _check_made_for(target: GGUFHeader, draft: ReducedVocabulary | MedusaHeads) -> None:
    """Check that the target has the tokens of a table, and is the one that is named, if one is."""
    size = target.vocabulary_size
    if draft.target_size not in (None, size):
        raise PairingError(
            f"the draft does not fit: it was made for a target of {draft.target_size:,} tokens, "
            f"this one has {size:,}"
        )
    highest = int(draft.target_ids.max())
    if highest >= size:
        raise PairingError(
            f"the draft does not fit: it proposes token {highest}, the target has {size:,}"
        )
    if draft.target_checksum not in (None, target.tokens_sha256):
        raise PairingError(
            "the draft does not fit: it was made for a target with other tokens (their checksum "
            f"is {draft.target_checksum[:16]}..., this target's {target.tokens_sha256[:16]}...)"
        )


def _check_medusa(target: GGUFHeader, heads: MedusaHeads) -> Pairing:
    if heads.target_width != target.embedding_length:
        raise PairingError(
            "the Medusa heads do not fit: they read hidden states of width "
            f"{heads.target_width:,}, the target's have {target.embedding_length:,}"
        )
    _check_made_for(target, heads)
    known = len(heads.target_ids)
    return Pairing(
        known,
        f"{heads.count} Medusa heads that propose {known:,} of the target's "
        f"{target.vocabulary_size:,} tokens",
    )


def _check_eagle(target: GGUFHeader, draft: GGUFHeader, head: EagleHead) -> Pairing:
    if head.target_width != target.embedding_length:
        raise PairingError(
            "the EAGLE-3 head does not fit: it reads hidden states of width "
            f"{head.target_width:,}, the target's have {target.embedding_length:,}"
        )
    if max(head.layers) >= target.block_count:
        raise PairingError(
            f"the EAGLE-3 head does not fit: it reads the input of layer {max(head.layers)}, the "
            f"target's layers are 0 to {target.block_count - 1}"
        )
    borrows = head.borrows_embedding or head.borrows_output
    if borrows and draft.embedding_length != target.embedding_length:
        raise PairingError(
            "the EAGLE-3 head does not fit: it uses the target's token matrix, but its width is "
            f"{draft.embedding_length:,} and the target's {target.embedding_length:,}"
        )
    if head.borrows_output and draft.vocabulary_size != target.vocabulary_size:
        raise PairingError(
            "the EAGLE-3 head does not fit: it uses the target's output matrix, but it has "
            f"{draft.vocabulary_size:,} tokens and the target {target.vocabulary_size:,}"
        )
    shared = _check_vocabularies(target, draft).shared_vocabulary
    proposes = shared if head.target_ids is None else int((head.target_ids < shared).sum())
    if proposes == 0:
        raise PairingError("the EAGLE-3 head does not fit: it proposes no token of the target's")
    layers = ", ".join(map(str, head.layers))
    return Pairing(
        shared,
        f"an EAGLE-3 head that reads the target's layers {layers} and proposes {proposes:,} of "
        f"its {target.vocabulary_size:,} tokens",
    )


def _check_tokenizers(target: GGUFHeader, draft: GGUFHeader) -> None:
    for what, ours, theirs in (
        ("tokenizer", target.tokenizer_model, draft.tokenizer_model),
        ("pre-tokenizer", target.tokenizer_pre, draft.tokenizer_pre),
    ):
        if ours != theirs:
            raise PairingError(
                f"the draft does not fit: its {what} is {theirs!r}, the target's is {ours!r}"
            )


def _check_tokens(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    ours, theirs = target.tokens(), draft.tokens()
    shorter, longer = sorted((target, draft), key=lambda header: header.vocabulary_size)
    common = shorter.vocabulary_size
    shared = next((i for i in range(common) if ours[i] != theirs[i]), common)
    # What the longer one has more must be padding. If both continue with different tokens, it is
    # enough that one of them continues with padding.
    last = _end_of_text(longer)
    if shared < common:
        last = min(last, _end_of_text(shorter))
    if shared == 0 or shared < last:
        first = shared if shared < common else _first_ordinary(longer, shared)
        raise PairingError(
            f"the draft does not fit: token {first} is {_show(ours, first)} in the target and "
            f"{_show(theirs, first)} in the draft"
        )
    return Pairing(shared, _explain(shared, len(ours) - shared, len(theirs) - shared))


def _end_of_text(header: GGUFHeader) -> int:
    """Return the vocabulary's size without the padding at its end."""
    texts, kinds = header.tokens(), header.token_types()
    end = len(texts)
    while end and _pads(texts[end - 1], kinds[end - 1]):
        end -= 1
    return end


def _first_ordinary(header: GGUFHeader, start: int) -> int:
    texts, kinds = header.tokens(), header.token_types()
    return next(i for i in range(start, len(texts)) if not _pads(texts[i], kinds[i]))


def _pads(text: str, kind: int) -> bool:
    return kind not in _ORDINARY or _PADDING.fullmatch(text) is not None


def _explain(shared: int, target_extra: int, draft_extra: int) -> str:
    extras = [
        f"the {who} has {extra:,} more at the end"
        for who, extra in (("target", target_extra), ("draft", draft_extra))
        if extra
    ]
    return f"the first {shared:,} tokens are identical, and {' and '.join(extras)}"


def _check_special(target: GGUFHeader, draft: GGUFHeader) -> None:
    for what, ours, theirs in (
        ("beginning-of-text", target.bos_token_id, draft.bos_token_id),
        ("end-of-text", target.eos_token_id, draft.eos_token_id),
        ("end-of-turn", target.eot_token_id, draft.eot_token_id),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            raise PairingError(
                f"the draft does not fit: its {what} token is "
                f"{theirs} {_show(draft.tokens(), theirs)}, the target's is "
                f"{ours} {_show(target.tokens(), ours)}"
            )


def _show(tokens: list[str], index: int) -> str:
    if index >= len(tokens):
        return "absent"
    text = tokens[index]
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
