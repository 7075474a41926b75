"""Proves on the user's machine that speculation changes nothing: one module a check."""
