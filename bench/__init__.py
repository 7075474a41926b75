"""Benchmarks of this repository, each run as `python -m bench.NAME` from its top."""
