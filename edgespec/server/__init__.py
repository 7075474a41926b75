"""An OpenAI-compatible HTTP server for one engine, and its web page."""
