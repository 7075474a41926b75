"""What is measured on this machine, and what is chosen from it.

`setting` is one way to open a model and what was measured of it (by `measure`). `search` compares
ways by short looks at each, `kernels` compares kernels, `drafting` measures a draft, and `tune`
does all of it within a time limit. `exactness` decides which way keeps what was promised. `profile`
keeps the results and says what to expect from them; `report` shows both. What is decided every
cycle is in `edgespec.control`.
"""
