"""Processes that are forked from one that uses a model, and processes that are not."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., str]


def test_a_fork_is_refused_at_once_and_disturbs_nobody(run: Run) -> None:
    """Also while another thread of the parent's generates: its locks are held for ever then."""
    output = run(
        """
        from edgespec.errors import UsageError

        def refused(call):
            try:
                call()
            except UsageError as error:
                assert "fork" in str(error) and "\\n" not in str(error), error
            else:
                os._exit(3)

        engine = load()
        session = edgespec.Session(engine, sampling=GREEDY)
        mine, other = (engine.generate("The sea", endless(engine), LONG) for _ in range(2))
        pieces, busy = iter(mine), threading.Event()

        def work():
            for piece in other:
                busy.set()

        next(pieces)
        threading.Thread(target=work, daemon=True).start()
        busy.wait()
        for number in range(3):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                refused(lambda: engine.generate("The sea", GREEDY, SHORT))
                refused(lambda: session.send("Hello"))
                refused(lambda: next(pieces))
                refused(lambda: load())
                other.cancel()
                engine.close()
                del engine, session, pieces, mine
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            next(pieces)
        other.cancel()
        print(len(engine.generate("The sea", endless(engine), SHORT).result.tokens))
        """
    )
    assert output == "8\n"


def test_multiprocessing(run: Run) -> None:
    output = run(
        """
        def work(queue, engine=None):
            try:
                engine = engine or load()
                queue.put(engine.generate("One two three", GREEDY, SHORT).result.text)
                engine.close()
            except edgespec.errors.UsageError as error:
                queue.put(str(error))

        def ask(method, *arguments):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, *arguments))
            process.start()
            answer = queue.get()
            process.join()
            assert process.exitcode == 0
            return answer

        if __name__ == "__main__":
            before = ask("fork")  # nothing was loaded here yet
            engine = load()
            text = engine.generate("One two three", GREEDY, SHORT).result.text
            assert ask("spawn") == before == text
            assert "before this process was forked" in ask("fork", engine)
            assert "forked from one that had used a model" in ask("fork")
            engine.close()
            assert "forked from one that had used a model" in ask("fork")
            print("bye")
        """
    )
    assert output == "bye\n"
