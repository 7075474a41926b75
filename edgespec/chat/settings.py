"""`/set`: the sampling parameters and limits of a conversation, by the names of the options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from edgespec.errors import UsageError
from edgespec.runtime.session import Session
from edgespec.sampling.breakers import read_breakers
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.settings import ACCEPTANCE_RULES, draw_settings

__all__ = ["SETTING_NAMES", "change_setting", "setting_line", "setting_lines", "setting_values"]

_NOT_NUMBERS = ("logit_bias", "dry_breakers")
_SAMPLING = tuple(
    field.name for field in fields(SamplingParameters) if field.name not in _NOT_NUMBERS
)
_BREAKER = "dry_breaker"
_LIMITS = ("max_tokens", "stop", "overflow")
_OFF = "none"

SETTING_NAMES = tuple(name.replace("_", "-") for name in (*_SAMPLING, _BREAKER, *_LIMITS, "accept"))
"""What `change_setting` takes."""


def setting_lines(session: Session) -> Iterator[str]:
    """Every setting with its value."""
    width = max(map(len, SETTING_NAMES))
    for key, value in _values(session).items():
        yield f"{key.replace('_', '-'):{width}}  {_shown(value)}"
    for token, bias in session.sampling.logit_bias.items():
        yield f"{'logit-bias':{width}}  {token}={bias}"


def setting_line(session: Session, name: str) -> str:
    """One setting with its value.

    Raises:
        UsageError: unknown name.
    """
    key = name.lower().replace("-", "_")
    values = _values(session)
    if key not in values:
        raise UsageError(_unknown(name))
    return f"{key.replace('_', '-')} is {_shown(values[key])}"


def setting_values(name: str) -> tuple[str, ...]:
    """Words that a setting may be; empty if it is a number."""
    return {"accept": ACCEPTANCE_RULES, "overflow": ("stop", "shift")}.get(name, ())


def change_setting(session: Session, name: str, text: str) -> str:
    """Give a setting a new value, and say which.

    Raises:
        UsageError: unknown name or bad value; nothing was changed.
    """
    key = name.lower().replace("-", "_")
    if key in _SAMPLING:
        number = _number(name, text, getattr(SamplingParameters, key))
        sampling = replace(session.sampling, **{key: number})
        draw_settings(sampling, session.accept)
        session.sampling = sampling
    elif key == _BREAKER:
        session.sampling = replace(session.sampling, dry_breakers=read_breakers(text.split()))
    elif key in _LIMITS:
        session.limits = replace(session.limits, **{key: _limit(key, text)})
    elif key == "accept":
        draw_settings(session.sampling, text)
        session.accept = text
    else:
        raise UsageError(_unknown(name))
    return f"{key.replace('_', '-')} is {_shown(_values(session)[key])} now"


def _values(session: Session) -> dict[str, Any]:
    values = {key: getattr(session.sampling, key) for key in _SAMPLING}
    values[_BREAKER] = session.sampling.dry_breakers
    values |= {key: getattr(session.limits, key) for key in _LIMITS}
    return {**values, "accept": session.accept}


def _number(name: str, text: str, example: float) -> Any:
    kind = type(example)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"{name} is {text!r}: it has to be {wanted}") from None


def _limit(key: str, text: str) -> Any:
    if key == "max_tokens":
        return None if text == _OFF else _number("max-tokens", text, 0)
    if key == "stop":
        return () if text == _OFF else (text,)
    return text


def _shown(value: Any) -> str:
    if value is None or value == ():
        return _OFF
    return " ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def _unknown(name: str) -> str:
    typed = name.lower().replace("_", "-")
    begun = [known for known in SETTING_NAMES if known.startswith(typed)]
    close = begun[:2] or get_close_matches(typed, SETTING_NAMES, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ": /set lists them"
    return f"there is no setting {name!r}{hint}"
