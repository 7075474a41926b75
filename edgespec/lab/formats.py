"""Exact numbers as text."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["both", "decimal", "exact", "fixed", "times"]

# Python prints no more than 4,300 digits; nobody reads that many.
_MOST_BITS = 13_000
_LONGEST_TO_READ = 21


def exact(value: Fraction) -> str | None:
    """3/5; None if it has thousands of digits."""
    largest = max(abs(value.numerator), value.denominator)
    return str(value) if largest.bit_length() <= _MOST_BITS else None


def decimal(value: Fraction) -> str:
    """At most 7 characters for a probability; 1.0000 and 0.6000 are rounded, 1 and 0.6 are not."""
    if value and (abs(value) < Fraction(1, 1000) or abs(value) >= 1000):
        return f"{float(value):.1e}"
    text = f"{float(value):.4f}"
    return text.rstrip("0").rstrip(".") if Fraction(text) == value else text


def fixed(value: Fraction) -> str:
    """Two decimals, or an exponent for what is large."""
    return f"{float(value):.2f}" if value < 1000 else f"{float(value):.1e}"


def times(value: Fraction) -> str:
    """A speedup."""
    return f"{fixed(value)}x"


def both(value: Fraction) -> str:
    """Fraction and decimal; the decimal alone if the fraction is too long to be read."""
    text, short = f"{float(value):.6g}", exact(value)
    if short is None or len(short) > _LONGEST_TO_READ:
        return f"about {text}"
    if short == text:
        return text
    return f"{short} = {text}" if Fraction(text) == value else f"{short} = about {text}"
