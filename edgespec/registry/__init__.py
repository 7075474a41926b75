"""Named models: where they come from, where they lie, what they are, and which drafts fit them."""
