"""Conversations kept on disk: a file for each, a line for each event."""
