"""Prove on the user's machine that speculation changes nothing."""
