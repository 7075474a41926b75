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


def edited(logits, history, length, parameters, breakers=()):
    """Bias, penalties and DRY, in the logits' own precision: float32 is part of the definition.

    With Mirostat there is only the bias. Breakers are tuples of tokens.
    """
    values = [np.float32(x) for x in logits]
    for token, bias in parameters.logit_bias.items():
        values[token] = values[token] + np.float32(bias)
    if parameters.mirostat:
        return np.array(values, np.float32)
    recent = _recent(history, length, parameters.penalty_window)
    repeat = np.float32(parameters.repeat_penalty)
    frequency = np.float32(parameters.frequency_penalty)
    presence = np.float32(parameters.presence_penalty)
    for token in {int(t) for t in recent}:
        value = values[token]
        value = value / repeat if value > 0 else value * repeat
        values[token] = value - (np.float32(recent.count(token)) * frequency + presence)
    if parameters.dry_multiplier > 0:
        recent = _recent(history, length, parameters.dry_window)
        for token, penalty in dry_penalties(recent, parameters, breakers).items():
            values[token] = values[token] - np.float32(penalty)
    return np.array(values, np.float32)


def _recent(history, length, window):
    recent = [int(token) for token in history[:length]]
    return recent if window < 0 else recent[max(0, len(recent) - window) :]


def dry_penalties(recent, parameters, breakers):
    """Token -> penalty: every earlier place is compared with the end of the text."""
    allowed = parameters.dry_allowed_length
    if len(recent) <= allowed:
        return {}
    limit = len(recent)
    for start in range(len(recent) - 1, -1, -1):
        found = [b for b in breakers if tuple(recent[start : start + len(b)]) == tuple(b)]
        if found:
            limit = len(recent) - start - max(map(len, found))
            break
    if limit < allowed:
        return {}
    longest = {}
    for place in range(1, len(recent)):
        same = 0
        while same < min(place, limit) and recent[place - 1 - same] == recent[-1 - same]:
            same += 1
        if same >= allowed:
            longest[recent[place]] = max(longest.get(recent[place], 0), same)
    base = float(np.float32(parameters.dry_base))
    most = int(88.7228391 / math.log(base)) if base > 1.000001 else len(recent)
    return {
        token: parameters.dry_multiplier * base ** min(same - allowed, most)
        for token, same in longest.items()
        if (token,) not in {tuple(b) for b in breakers}
    }


def softmax(values, temperature=1.0):
    """Over finite float64 values."""
    scaled = (values - values.max()) / temperature
    weights = np.exp(scaled)
    return weights / weights.sum()


def excludes(parameters):
    """XTC's coin where it is sure; 0 < probability < 1 is for the caller to toss."""
    return parameters.xtc_probability >= 1 and parameters.xtc_threshold <= 0.5


def sorted_ids(values, parameters, sigma=0.0):
    """What top-n-sigma and top-k leave, the largest first."""
    ids = np.flatnonzero(values > -np.inf)
    ids = ids[np.lexsort((ids, -values[ids]))]
    if parameters.top_n_sigma > 0:
        floor = values[ids[0]] - parameters.top_n_sigma * values[ids].std() + sigma
        ids = ids[: max(1, int((values[ids] >= floor).sum()))]
    return ids[: parameters.top_k] if parameters.top_k > 0 else ids


def kept(logits, parameters, typical=0.0, entropy=0.0, narrow=False, top_p=0.0, min_p=0.0,
         sigma=0.0, xtc=0.0, coin=None):  # fmt: skip
    """Mask of the tokens that the filters keep; the other arguments move its thresholds."""
    values = np.asarray(logits, np.float64)
    ids = sorted_ids(values, parameters, sigma)
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
    if excludes(parameters) if coin is None else coin:
        top = np.flatnonzero(softmax(values[ids]) >= parameters.xtc_threshold + xtc)
        ids = np.delete(ids, top[:-1])
    if parameters.temperature <= 0 and parameters.dynatemp_range <= 0:
        ids = ids[:1]
    mask = np.zeros(len(values), bool)
    mask[ids] = True
    return mask


def undecided(logits, parameters, tolerance):
    """Where rounding orders tokens for typical-p: mask of what it may keep; None if nowhere.

    Tokens whose distances from the entropy differ by less than the tolerance come in any order.
    That matters if the cut is among them and their logits, and so their order, are not equal.
    """
    values = np.asarray(logits, np.float64)
    ids = sorted_ids(values, parameters)
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


def verdict(logits, parameters, tolerance=1e-6, deviation=0.0):
    """What must and what may be kept; `deviation` is a rounding error of top-n-sigma's.

    Thresholds are also left where they are: XTC and typical-p look at the whole set before them,
    and what they leave of a set need not lie between what they leave of a smaller and a larger.
    """
    if parameters.typical_p < 1:
        possible = undecided(logits, parameters, tolerance)
        if possible is not None:
            return Verdict(np.zeros(len(logits), bool), possible)
    sigma, min_p = _rounding_of_floors(logits, parameters)
    sigma += deviation
    moved = {
        "typical": (-tolerance, tolerance) if parameters.typical_p < 1 else (0.0,),
        "entropy": (0.0, -tolerance, tolerance) if parameters.typical_p < 1 else (0.0,),
        "narrow": (False, True) if parameters.typical_p < 1 else (False,),
        "top_p": (-tolerance, 0.0, tolerance) if parameters.top_p < 1 else (0.0,),
        "min_p": (-min_p, 0.0, min_p) if parameters.min_p > 0 else (0.0,),
        "sigma": (-sigma, 0.0, sigma) if parameters.top_n_sigma > 0 else (0.0,),
        "xtc": (-tolerance, tolerance) if excludes(parameters) else (0.0,),
    }
    masks = [
        kept(logits, parameters, **dict(zip(moved, choice, strict=True)))
        for choice in itertools.product(*moved.values())
    ]
    return Verdict(np.logical_and.reduce(masks), np.logical_or.reduce(masks))


def _rounding_of_floors(logits, parameters):
    """How far the smallest logits that top-n-sigma and min-p keep are off in float32.

    A few units in the last place, of what is subtracted and of what it is subtracted from. No
    fixed tolerance would do: it is larger than all logits if they are small enough.
    """
    finite = np.asarray(logits, np.float64)[np.isfinite(logits)]
    largest = abs(finite.max())
    sigma = largest + max(0.0, parameters.top_n_sigma) * finite.std()
    min_p = largest - (math.log(parameters.min_p) if parameters.min_p > 0 else 0.0)
    most = float(np.finfo(np.float32).max)
    return tuple(4.0 * float(np.spacing(np.float32(min(x, most)))) for x in (sigma, min_p))


def temperature_of(logits, mask, parameters):
    """The dynamic temperature of the candidates in a mask, or the fixed one."""
    if parameters.dynatemp_range <= 0:
        return parameters.temperature
    low = max(0.0, parameters.temperature - parameters.dynatemp_range)
    high = parameters.temperature + parameters.dynatemp_range
    listed = int(mask.sum())
    if parameters.typical_p >= 1 and parameters.top_p >= 1 and parameters.min_p <= 0:
        # llama.cpp's list has the tokens of probability 0 still.
        everything = kept(logits, parameters, coin=False)
        listed += min(parameters.top_k or len(logits), len(logits)) - int(everything.sum())
    if listed <= 1:
        return low
    p = softmax(np.asarray(logits, np.float64)[mask])
    p = p[p > 0]
    share = max(0.0, float(-(p * np.log(p)).sum())) / math.log(listed)
    return low + (high - low) * share**parameters.dynatemp_exponent


def probabilities(logits, mask, parameters):
    """Softmax of the tokens of a mask at the temperature asked for."""
    p = np.zeros(len(logits))
    temperature = temperature_of(logits, mask, parameters)
    ids = np.flatnonzero(mask)
    if temperature <= 0:
        p[ids[np.argmax(np.asarray(logits)[ids])]] = 1
    else:
        p[ids] = softmax(np.asarray(logits, np.float64)[ids], temperature)
    return p


def distribution(logits, history, length, parameters, breakers=()):
    """p in float64, with no tolerance anywhere; over XTC's coin, too."""
    values = edited(logits, history, length, parameters, breakers)
    chance = parameters.xtc_probability if parameters.xtc_threshold <= 0.5 else 0.0
    return sum(
        weight * probabilities(values, kept(values, parameters, coin=coin), parameters)
        for coin, weight in ((False, 1 - chance), (True, chance))
        if weight > 0
    )


def mirostat(logits, parameters, mu, slack=0.0):
    """p when mu bits of surprise are allowed."""
    values = np.asarray(logits, np.float64)
    temperature = parameters.temperature
    p = np.zeros(len(values))
    if temperature <= 0:
        p[np.argmax(values)] = 1
        return p
    p[values > -np.inf] = softmax(values[values > -np.inf], temperature)
    with np.errstate(divide="ignore"):
        wanted = -np.log2(p) <= mu + slack
    wanted[np.argmax(values)] = True
    return np.where(wanted, p, 0) / p[wanted].sum()


def next_mu(mu, probability, parameters):
    """mu after a token of this probability."""
    return mu - parameters.mirostat_eta * (-math.log2(probability) - parameters.mirostat_tau)
