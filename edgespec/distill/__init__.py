"""Make a draft: text in the target's own words, a small model trained on it, and the proof."""
