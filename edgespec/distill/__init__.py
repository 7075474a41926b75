"""Makes drafts: text in a target's own words, a small model trained on it, and the proof."""
