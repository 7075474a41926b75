"""What a GGUF file says of its model, read with care: no header can harm the process."""
