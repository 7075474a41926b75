"""Compare edgespec with the runtimes that people would use instead."""
