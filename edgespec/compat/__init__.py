"""The interfaces of others: OpenAI's requests and answers, and llama-cpp-python's `Llama`."""
