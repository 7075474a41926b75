"""What is measured on this machine, and what is chosen from it.

`setting` is one way to open a model and what was measured of it (by `measure`); `search` compares
ways with what `bench` saw of them, `drafting` measures a draft, and `tune` does all of it within a
time limit. `exactness` decides which way keeps what was promised. `profile` keeps the
results; `explain` and `report` tell them. What is decided every cycle is in `edgespec.control`.
"""
