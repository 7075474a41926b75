"""A conversation's settings: what they are, their JSON, and `/set`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from edgespec.errors import UsageError
from edgespec.runtime.options import NO_LIMIT
from edgespec.runtime.session import Session
from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters, read_breakers
from edgespec.speculation.acceptance import ACCEPTANCE_RULES, draw_settings

__all__ = [
    "SETTING_NAMES",
    "Settings",
    "change_setting",
    "changed_settings",
    "read_sampling",
    "read_settings",
    "sampling_as_json",
    "setting_line",
    "setting_lines",
    "setting_values",
    "settings_as_json",
]

_NOT_NUMBERS = ("logit_bias", "dry_breakers")
_FIELDS = fields(SamplingParameters)
_SAMPLING = tuple(field.name for field in _FIELDS if field.name not in _NOT_NUMBERS)
_BREAKER = "dry_breaker"
_LIMITS = ("max_tokens", "stop", "overflow", "allow_loops")
_OFF = "none"
_SWITCH = {"on": True, "off": False}
SETTING_NAMES = tuple(name.replace("_", "-") for name in (*_SAMPLING, _BREAKER, *_LIMITS, "accept"))
"""What `change_setting` takes."""


class Settings(NamedTuple):
    """How answers are drawn, and what ends them."""

    sampling: SamplingParameters
    limits: GenerationLimits
    accept: str


def setting_lines(session: Session) -> Iterator[str]:
    """Yield every setting with its value."""
    width = max(map(len, SETTING_NAMES))
    for key, value in _values(session).items():
        yield f"{key.replace('_', '-'):{width}}  {_shown(value)}"
    for token, bias in session.sampling.logit_bias.items():
        yield f"{'logit-bias':{width}}  {token}={bias}"


def setting_line(session: Session, name: str) -> str:
    """Return one setting with its value.

    Raises:
        UsageError: unknown name.
    """
    key = name.lower().replace("-", "_")
    values = _values(session)
    if key not in values:
        raise UsageError(_unknown(name))
    return f"{key.replace('_', '-')} is {_shown(values[key])}"


def setting_values(name: str) -> tuple[str, ...]:
    """Return the words that a setting may be; none if it is a number."""
    words = {"overflow": ("stop", "shift"), "allow-loops": tuple(_SWITCH)}
    return {"accept": ACCEPTANCE_RULES, **words}.get(name, ())


def change_setting(session: Session, name: str, text: str) -> str:
    """Give a setting a new value, and return a line that says so.

    Raises:
        UsageError: unknown name or bad value; nothing was changed.
    """
    key = name.lower().replace("-", "_")
    if key in _SAMPLING:
        number = _typed_number(name, text, getattr(SamplingParameters, key))
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


def _typed_number(name: str, text: str, example: float) -> Any:
    kind = type(example)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise UsageError(f"{name} is {text!r}: it has to be {wanted}") from None


def _limit(key: str, text: str) -> Any:
    if key == "max_tokens":
        return None if text in (_OFF, str(NO_LIMIT)) else _typed_number("max-tokens", text, 0)
    if key == "allow_loops":
        if text not in _SWITCH:
            raise UsageError(f"allow-loops is {text!r}: it has to be on or off")
        return _SWITCH[text]
    if key == "stop":
        return () if text == _OFF else (text,)
    return text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == ():
        return _OFF
    return " ".join(map(repr, value)) if isinstance(value, tuple) else str(value)


def _unknown(name: str) -> str:
    typed = name.lower().replace("_", "-")
    begun = [known for known in SETTING_NAMES if known.startswith(typed)]
    close = begun[:2] or get_close_matches(typed, SETTING_NAMES, n=2)
    hint = f": did you mean {' or '.join(close)}?" if close else ": /set lists them"
    return f"there is no setting {name!r}{hint}"


def settings_as_json(settings: Settings) -> dict[str, Any]:
    """Return what `read_settings` reads."""
    limits = {name: getattr(settings.limits, name) for name in _LIMITS}
    return {
        "sampling": sampling_as_json(settings.sampling),
        "limits": {**limits, "stop": [*settings.limits.stop]},
        "accept": settings.accept,
    }


def read_settings(data: Mapping[str, Any]) -> Settings:
    """Read what `settings_as_json` wrote.

    Raises:
        ValueError: it is something else.
    """
    settings = Settings(
        read_sampling(data.get("sampling")), _limits(data.get("limits")), str(data.get("accept"))
    )
    draw_settings(settings.sampling, settings.accept)
    return settings


def changed_settings(stored: Settings, wanted: Settings, names: Collection[str]) -> Settings:
    """Return the stored settings, with the values in `names` replaced by the wanted ones."""
    renamed = {"dry_breakers" if name == "dry_breaker" else name for name in names}

    def of(values: Any, kept: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(values, name) for name in kept if name in renamed}

    sampling = replace(stored.sampling, **of(wanted.sampling, [f.name for f in _FIELDS]))
    limits = replace(stored.limits, **of(wanted.limits, _LIMITS))
    return Settings(sampling, limits, wanted.accept if "accept" in names else stored.accept)


def read_sampling(data: Any) -> SamplingParameters:
    """Read what `sampling_as_json` wrote; missing values have their defaults.

    Raises:
        ValueError: it is something else.
    """
    _require(isinstance(data, dict), "the sampling parameters are not an object")
    defaults = {field.name: getattr(SamplingParameters(), field.name) for field in _FIELDS}
    unknown = sorted(set(data) - set(defaults))
    _require(not unknown, f"sampling parameter {unknown[:1]} is not known")
    values: dict[str, Any] = {
        name: _READERS[name](value) if name in _READERS else _number(name, value, defaults[name])
        for name, value in data.items()
    }
    return SamplingParameters(**values)


def _limits(data: Any) -> GenerationLimits:
    _require(isinstance(data, dict), "the limits are not an object")
    most, stop = data.get("max_tokens"), data.get("stop", [])
    _require(most is None or type(most) is int, f"max_tokens is {most!r}")
    _require(
        isinstance(stop, list) and all(isinstance(text, str) for text in stop),
        "stop is not a list of texts",
    )
    loops = data.get("allow_loops", False)
    _require(isinstance(loops, bool), f"allow_loops is {loops!r}")
    overflow = data.get("overflow", "shift")
    return GenerationLimits(most, tuple(stop), overflow, allow_loops=loops)


def _number(name: str, value: Any, default: float) -> float:
    kinds = (int,) if isinstance(default, int) else (int, float)
    _require(isinstance(value, kinds) and not isinstance(value, bool), f"{name} is {value!r}")
    return value  # type: ignore[no-any-return]


def _biases(value: Any) -> dict[int, float]:
    _require(isinstance(value, dict), "logit_bias is not an object")
    return {
        int(token): float("-inf") if bias == "-inf" else _number("logit_bias", bias, 0.0)
        for token, bias in value.items()
    }


def _texts(value: Any) -> tuple[str, ...]:
    _require(
        isinstance(value, list) and all(isinstance(text, str) for text in value),
        "dry_breakers is not a list of texts",
    )
    return tuple(value)


def sampling_as_json(sampling: SamplingParameters) -> dict[str, Any]:
    """Return what `read_sampling` reads."""
    values = {field.name: getattr(sampling, field.name) for field in _FIELDS}
    # JSON has no infinity.
    values["logit_bias"] = {
        str(token): "-inf" if bias == float("-inf") else bias
        for token, bias in sampling.logit_bias.items()
    }
    return values


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


_READERS = {"logit_bias": _biases, "dry_breakers": _texts}
