"""How cost and memory grow with context, vocabulary, block length, answers and conversations."""
