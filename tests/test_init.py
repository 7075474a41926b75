"""What `import edgespec` offers, and what it costs."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys

import pytest

import edgespec


@pytest.mark.parametrize("name", edgespec.__all__)
def test_every_name_is_there_and_described(name: str) -> None:
    value = getattr(edgespec, name)
    assert value.__doc__
    assert name in dir(edgespec)


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Motor'"):
        edgespec.Motor  # noqa: B018


def test_an_old_name_still_works_and_says_so() -> None:
    with pytest.warns(DeprecationWarning, match="edgespec.Piece is called TokenChunk now"):
        assert edgespec.Piece is edgespec.TokenChunk


def test_it_is_typed() -> None:
    assert importlib.resources.files("edgespec").joinpath("py.typed").is_file()


def test_importing_it_is_cheap() -> None:
    """A program that may never load a model does not wait for what only a model needs."""
    heavy = "{'numpy', 'numba', 'llama_cpp', 'jinja2', 'httpx', 'asyncio'}"
    script = f"import sys, edgespec; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
