"""The online decision: what did proposals cost, how often are they accepted, how many now.

Every cycle the decoder asks how many proposals to verify, and the answer is computed from what was
measured on this machine and learned from this text. Read the modules in this order: `costs`
predicts the seconds of a target evaluation and corrects itself with every one; `calibration` turns
how sure a draft is into how often it is right; `speedup` divides expected tokens by their cost,
and counts what was achieved; `budget` is what one cycle may spend, and the number of proposals
that is best within it; `stopping` decides token by token whether a draft goes on; `controller`
hands out a budget every cycle and keeps the account that makes speculation never slower than plain
decoding. Nothing here knows a drafter or a model: `drafters` and `runtime` call it.
"""
