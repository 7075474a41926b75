"""Plain decoding against speculation on prompts, measured in pairs."""
