"""Sampling parameters and limits as JSON, believed only after a check."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from edgespec.runtime.stream import GenerationLimits
from edgespec.sampling.parameters import SamplingParameters
from edgespec.speculation.settings import draw_settings

__all__ = [
    "Settings",
    "changed_settings",
    "read_sampling",
    "read_settings",
    "sampling_as_json",
    "settings_as_json",
]


class Settings(NamedTuple):
    """How answers are drawn, and what ends them."""

    sampling: SamplingParameters
    limits: GenerationLimits
    accept: str


def settings_as_json(settings: Settings) -> dict[str, Any]:
    """For `read_settings`."""
    limits = {name: getattr(settings.limits, name) for name in _LIMITS}
    return {
        "sampling": sampling_as_json(settings.sampling),
        "limits": {**limits, "stop": [*settings.limits.stop]},
        "accept": settings.accept,
    }


def read_settings(data: Mapping[str, Any]) -> Settings:
    """What `settings_as_json` gave.

    Raises:
        ValueError: it is something else.
    """
    settings = Settings(
        read_sampling(data.get("sampling")), _limits(data.get("limits")), str(data.get("accept"))
    )
    draw_settings(settings.sampling, settings.accept)
    return settings


def changed_settings(stored: Settings, wanted: Settings, names: Collection[str]) -> Settings:
    """The stored settings, with those that are named from the wanted ones."""
    renamed = {"dry_breakers" if name == "dry_breaker" else name for name in names}

    def of(values: Any, kept: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(values, name) for name in kept if name in renamed}

    sampling = replace(stored.sampling, **of(wanted.sampling, [f.name for f in _FIELDS]))
    limits = replace(stored.limits, **of(wanted.limits, _LIMITS))
    return Settings(sampling, limits, wanted.accept if "accept" in names else stored.accept)


def read_sampling(data: Any) -> SamplingParameters:
    """What `sampling_as_json` gave; what is missing is as by default.

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
    return GenerationLimits(most, tuple(stop), data.get("overflow", "shift"))


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
    """For `read_sampling`."""
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


_FIELDS = fields(SamplingParameters)
_LIMITS = ("max_tokens", "stop", "overflow")
_READERS = {"logit_bias": _biases, "dry_breakers": _texts}
