"""The commands, one module each: they parse and print, and leave the work to others."""
