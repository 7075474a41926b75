"""What a command says while it opens a model."""

import os
import pty
import subprocess
import sys

SCRIPT = "import sys; from edgespec.cli.opening import say_small_once as say; say({model!r})"


def said(terminal, model=None, **more):
    """Return what a process of its own says on standard error, a terminal or not."""
    main, other = pty.openpty()
    streams = {"stdout": other, "stderr": other} if terminal else {"stderr": subprocess.PIPE}
    command = [sys.executable, "-c", SCRIPT.format(model=model)]
    done = subprocess.run(command, env={**os.environ, **more}, check=True, **streams)
    os.set_blocking(main, False)
    try:
        return os.read(main, 4096).decode() if terminal else done.stderr.decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(main)
        os.close(other)


def test_the_default_is_called_a_toy_once(cache):
    assert said(False) == ""
    assert said(True, model="qwen3-4b") == ""
    assert "`edgespec list`" in said(True)
    assert said(True) == ""


def test_nothing_is_said_that_could_not_be_kept(tmp_path):
    (tmp_path / "file").touch()
    assert said(True, EDGESPEC_CACHE=str(tmp_path / "file")) == ""
