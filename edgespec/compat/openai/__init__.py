"""OpenAI's request and response shapes, without HTTP: for the server and for programs."""
