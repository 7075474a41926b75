"""Compare measured speedups with those that theory predicts, and explain the difference."""
