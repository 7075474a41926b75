"""Whether a draft's tokens mean the same as its target's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gguf import TokenType

from edgespec.errors import PairingError
from edgespec.registry.header import GGUFHeader

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
    """A draft fits: token ids below ``shared_vocabulary`` mean the same in both models."""

    shared_vocabulary: int
    reason: str


def check_pairing(target: GGUFHeader, draft: GGUFHeader) -> Pairing:
    """Check that *draft* can propose tokens for *target*.

    The vocabularies must be identical, or identical but for padding at the end: tokens there that
    are unused, special, or named as padding, in the longer vocabulary or in both. Tokenizer kind
    and the ids of the special tokens must agree.

    Raises PairingError, naming what differs; for vocabularies the first token id and both texts.
    """
    _check_tokenizers(target, draft)
    if target.same_tokens(draft):
        pairing = Pairing(target.vocabulary_size, "the vocabularies are identical")
    else:
        pairing = _check_tokens(target, draft)
    _check_special(target, draft)
    return pairing


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
    # What the longer one has on top must be padding; where both go on with different tokens, it is
    # enough that one of them goes on with padding.
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
    """The vocabulary's size without the padding at its end."""
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
