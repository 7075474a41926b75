"""`edgespec lab`: the arithmetic of speculation for given p and q, in exact numbers."""
