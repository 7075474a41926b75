"""Loading: what is told meanwhile, and that nothing stays behind afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]


def test_progress_of_the_download_of_loading_and_of_reading(
    run: Run, recurrent_model: Path, tmp_path: Path
) -> None:
    output = run(
        """
        from hub import serve

        os.environ["HF_ENDPOINT"] = serve(sys.argv[2])
        os.environ["EDGESPEC_CACHE"] = sys.argv[3]
        size = os.path.getsize(sys.argv[2])
        for number in range(2):
            fetched, loaded, read = [], [], []
            with edgespec.load(
                "hf:owner/name/model.gguf",
                EngineOptions(threads=1, draft="none"),
                progress=lambda *told: loaded.append(told),
                download=lambda *told: fetched.append(told),
            ) as engine:
                stream = engine.generate(
                    "the heat " * 100, GREEDY, SHORT, progress=lambda *told: read.append(told)
                )
                prompt = stream.result.prompt_tokens - 1
            assert [one[0] for one in fetched] == sorted(one[0] for one in fetched)
            assert fetched[-1:] == ([] if number else [(size, size)]), fetched
            assert {one[0] for one in loaded} == {"loading hf:owner/name/model.gguf"}
            assert loaded[-1][1] == 1.0
            assert [one[0] for one in read] == sorted({one[0] for one in read})
            assert len(read) > 1 and read[-1] == (prompt, prompt)
        print("bye")
        """,
        recurrent_model,
        tmp_path / "cache",
    )
    assert output == "bye\n"


@pytest.mark.slow
def test_engines_come_and_go_and_leave_nothing_behind(run: Run, recurrent_model: Path) -> None:
    """The second half of many takes no more than the first: memory, threads, open files."""
    output = run(
        """
        import psutil
        process = psutil.Process()

        def use(path, times, growth_mib):
            taken = []
            for _ in range(times):
                with edgespec.load(path, EngineOptions(threads=2, context=256, k=2)) as engine:
                    engine.generate("the heat", GREEDY, SHORT).result
                memory = process.memory_info().rss / 2**20
                taken.append((memory, process.num_threads(), process.num_fds()))
            half, last = taken[times // 2], taken[-1]
            assert half[1:] == last[1:], taken
            assert last[0] - half[0] < growth_mib, taken

        use(sys.argv[2], 100, 4)
        use(MODEL, 10, 40)
        print("bye")
        """,
        recurrent_model,
    )
    assert output == "bye\n"


def test_a_file_of_a_repository_by_a_pattern(
    run: Run, recurrent_model: Path, tmp_path: Path
) -> None:
    output = run(
        """
        from hub import serve

        os.environ["HF_ENDPOINT"] = serve(sys.argv[2])
        os.environ["EDGESPEC_CACHE"] = sys.argv[3]
        for name in ("model.gguf", "mod*.gguf"):
            with edgespec.Llama.from_pretrained("owner/name", name, n_ctx=64, draft="none") as llm:
                print(llm.n_vocab())
        for pattern in ("*-q4.gguf", "*.onnx"):
            try:
                edgespec.Llama.from_pretrained("owner/name", pattern)
            except edgespec.errors.DownloadError as error:
                print(error)
        """,
        recurrent_model,
        tmp_path / "cache",
    )
    assert output.splitlines() == [
        "260",
        "260",
        "owner/name: 2 files match '*-q4.gguf': it has a-q4.gguf, b-q4.gguf",
        "owner/name: no file matches '*.onnx': it has a-q4.gguf, b-q4.gguf, model.gguf",
    ]
