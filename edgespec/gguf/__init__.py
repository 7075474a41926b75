"""Read GGUF headers safely: what a file says of its model; no header can harm the process."""
