"""Measure plain decoding against speculation, in pairs."""
