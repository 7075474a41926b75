"""The engine: loading, the decoding loop, streams of text, sessions, statistics, memory."""
