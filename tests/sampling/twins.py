"""The filters once more, in float64 NumPy: sort everything, sum everything, no cleverness.

Rounding decides near the edge of a filter: whether a token stays there is left open. `verdict`
runs the chain with every threshold moved a little up and down; what all runs keep is sure, what
any run keeps is possible.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np


class Verdict(NamedTuple):
    sure: np.ndarray
    possible: np.ndarray


def edited(logits, history, length, parameters):
    """Bias and penalties, in the logits' own precision: float32 is part of the definition."""
    values = [np.float32(x) for x in logits]
    for token, bias in parameters.logit_bias.items():
        values[token] = values[token] + np.float32(bias)
    window = parameters.penalty_window
    recent = list(history[:length])
    recent = recent if window < 0 else recent[max(0, len(recent) - window) :]
    repeat = np.float32(parameters.repeat_penalty)
    frequency = np.float32(parameters.frequency_penalty)
    presence = np.float32(parameters.presence_penalty)
    for token in {int(t) for t in recent}:
        value = values[token]
        value = value / repeat if value > 0 else value * repeat
        values[token] = value - (np.float32(recent.count(token)) * frequency + presence)
    return np.array(values, np.float32)


def softmax(values, temperature=1.0):
    """Over finite float64 values."""
    scaled = (values - values.max()) / temperature
    weights = np.exp(scaled)
    return weights / weights.sum()


def kept(logits, parameters, typical=0.0, entropy=0.0, narrow=False, top_p=0.0, min_p=0.0):
    """Mask of the tokens that the filters keep; the other arguments move its thresholds."""
    values = np.asarray(logits, np.float64)
    ids = np.flatnonzero(values > -np.inf)
    ids = ids[np.lexsort((ids, -values[ids]))]
    if parameters.top_k > 0:
        ids = ids[: parameters.top_k]
    if parameters.typical_p < 1:
        p = softmax(values[ids])
        largest = values[ids].max()
        surprisal = math.log(np.exp(values[ids] - largest).sum()) - (values[ids] - largest)
        mean = float((p * surprisal).sum()) + entropy
        distance = np.abs(surprisal - mean)
        if narrow:
            distance = distance.astype(np.float32)
        nearest = np.lexsort((ids, distance))
        before = np.concatenate(([0.0], np.cumsum(p[nearest])[:-1]))
        wanted = before <= parameters.typical_p + typical
        wanted[0] = True
        ids = ids[np.sort(nearest[wanted])]
    if parameters.temperature <= 0:
        ids = ids[:1]
    if parameters.top_p < 1:
        p = softmax(values[ids])
        before = np.concatenate(([0.0], np.cumsum(p)[:-1]))
        wanted = before < parameters.top_p + top_p
        wanted[0] = True
        ids = ids[wanted]
    if parameters.min_p > 0:
        wanted = values[ids] >= values[ids].max() + math.log(parameters.min_p) + min_p
        wanted[0] = True
        ids = ids[wanted]
    mask = np.zeros(len(values), bool)
    mask[ids] = True
    return mask


def undecided(logits, parameters, tolerance):
    """Where rounding orders tokens for typical-p: mask of what it may keep; None if nowhere.

    Tokens whose distances from the entropy differ by less than the tolerance come in any order.
    That matters if the cut is among them and their logits, and so their order, are not equal.
    """
    values = np.asarray(logits, np.float64)
    ids = np.flatnonzero(values > -np.inf)
    ids = ids[np.lexsort((ids, -values[ids]))]
    if parameters.top_k > 0:
        ids = ids[: parameters.top_k]
    p = softmax(values[ids])
    offset = values[ids] - values[ids].max()
    surprisal = math.log(np.exp(offset).sum()) - offset
    distance = np.abs(surprisal - float((p * surprisal).sum()))
    nearest = np.argsort(distance, kind="stable")
    before = np.concatenate(([0.0], np.cumsum(p[nearest])[:-1]))
    last = max(int((before <= parameters.typical_p + tolerance).sum()) - 1, 0)
    cut = distance[nearest[last]]
    slack = tolerance * max(1.0, cut)
    tied = np.abs(distance - cut) <= slack
    if len(set(values[ids[tied]])) == 1 or p[tied].sum() <= 10 * tolerance:
        return None
    mask = np.zeros(len(values), bool)
    mask[ids[distance <= cut + slack]] = True
    return mask


def verdict(logits, parameters, tolerance=1e-6):
    """What must and what may be kept."""
    if parameters.typical_p < 1:
        possible = undecided(logits, parameters, tolerance)
        if possible is not None:
            return Verdict(np.zeros(len(logits), bool), possible)
    finite = logits[logits > -np.inf]
    slack = tolerance + 2.0 * float(np.spacing(np.float32(np.abs(finite.max()) + 1)))
    moved = {
        "typical": (-tolerance, tolerance) if parameters.typical_p < 1 else (0.0,),
        "entropy": (0.0, -tolerance, tolerance) if parameters.typical_p < 1 else (0.0,),
        "narrow": (False, True) if parameters.typical_p < 1 else (False,),
        "top_p": (-tolerance, tolerance) if parameters.top_p < 1 else (0.0,),
        "min_p": (-slack, slack) if parameters.min_p > 0 else (0.0,),
    }
    masks = [
        kept(logits, parameters, **dict(zip(moved, choice, strict=True)))
        for choice in itertools.product(*moved.values())
    ]
    return Verdict(np.logical_and.reduce(masks), np.logical_or.reduce(masks))


def probabilities(logits, mask, parameters):
    """Softmax of the tokens of a mask at the temperature asked for."""
    p = np.zeros(len(logits))
    temperature = parameters.temperature if parameters.temperature > 0 else 1.0
    p[mask] = softmax(np.asarray(logits, np.float64)[mask], temperature)
    return p


def distribution(logits, history, length, parameters):
    """p in float64, with no tolerance anywhere."""
    values = edited(logits, history, length, parameters)
    return probabilities(values, kept(values, parameters), parameters)
