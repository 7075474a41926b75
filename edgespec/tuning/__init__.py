"""What was measured on this machine, and what is chosen from it."""
