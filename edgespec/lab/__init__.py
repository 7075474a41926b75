"""What `edgespec lab` reads, works out and draws: speculation's arithmetic for given p and q."""
