"""A program may end at any moment: status 0, nothing on standard error, no hang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., str]


def test_while_a_background_thread_writes_and_others_wait(run: Run) -> None:
    output = run(
        """
        engine, seen = load(), threading.Event()

        def work():
            for piece in engine.generate("The sea", endless(engine), LONG):
                seen.set()
            print("never")

        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        seen.wait()
        print("bye")
        """
    )
    assert output == "bye\n"


def test_while_a_background_thread_reads_a_prompt(run: Run) -> None:
    output = run(
        """
        engine, seen = load(), threading.Event()
        stream = engine.generate("The sea. " * 400, GREEDY, LONG, progress=lambda *_: seen.set())
        threading.Thread(target=lambda: stream.result, daemon=True).start()
        seen.wait()
        print("bye")
        """
    )
    assert output == "bye\n"


def test_while_a_background_thread_loads(run: Run) -> None:
    output = run(
        """
        seen = threading.Event()
        options = EngineOptions(threads=2, context=2048, draft="none")
        work = lambda: edgespec.load(MODEL, options, progress=lambda *_: seen.set())
        threading.Thread(target=work, daemon=True).start()
        seen.wait()
        print("bye")
        """
    )
    assert output == "bye\n"


def test_a_thread_that_is_no_daemon_is_waited_for(run: Run) -> None:
    output = run(
        """
        engine, seen = load(), threading.Event()

        def work():
            for piece in engine.generate("The sea", endless(engine), GenerationLimits(30)):
                seen.set()
            print("thread")

        threading.Thread(target=work).start()
        seen.wait()
        print("main")
        """
    )
    assert output == "main\nthread\n"


@pytest.mark.parametrize("end", ["sys.exit(0)", "return"])
def test_with_an_asynchronous_generation_under_way(run: Run, end: str) -> None:
    output = run(
        f"""
        engine = load()

        async def main():
            global stream
            stream = engine.generate("The sea", endless(engine), LONG)
            async for piece in stream:
                print("bye")
                {end}

        asyncio.run(main())
        """
    )
    assert output == "bye\n"


def test_with_a_loop_that_nobody_tidied_up(run: Run) -> None:
    output = run(
        """
        engine = load()

        async def main():
            pieces = aiter(engine.generate("The sea", endless(engine), LONG))
            await anext(pieces)
            return pieces

        loop = asyncio.new_event_loop()
        pieces = loop.run_until_complete(main())
        loop.close()
        print("bye")
        """
    )
    assert output == "bye\n"


def test_an_engine_that_was_forgotten_is_freed(run: Run) -> None:
    output = run(
        """
        import gc, warnings, weakref
        warnings.simplefilter("error", ResourceWarning)
        sys.unraisablehook = lambda what: print(what.exc_type.__name__)

        def use(finished):
            engine = load()
            stream = engine.generate("The sea", GREEDY, SHORT)
            if finished:
                stream.result
            else:
                next(iter(stream))
            return weakref.ref(engine), weakref.ref(engine.target)

        for finished in (True, False):
            engine, context = use(finished)
            if not finished:
                gc.collect()
            assert engine() is None and context() is None
        """
    )
    assert output == "ResourceWarning\n" * 2


def test_ctrl_c_in_a_plain_loop(run: Run) -> None:
    """At the very beginning, in a long prompt, and while writing."""
    output = run(
        """
        import time
        engine = load()
        expected = engine.generate("One two three", GREEDY, SHORT).result.tokens
        short, long = "The sea", "The sea is wide. " * 250
        for prompt, pieces in [(short, 0), (long, 0), (long, None), (short, 1), (short, 5)]:
            begun, read = threading.Event(), threading.Event()
            stream = engine.generate(
                f"{pieces} {prompt}", endless(engine), LONG, progress=lambda *_: read.set()
            )

            def interrupt():
                begun.wait()
                if pieces is None:
                    read.wait()
                while len(stream.emitted) < (pieces or 0):
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            try:
                begun.set()
                for piece in stream:
                    pass
                print("not interrupted")
            except KeyboardInterrupt:
                pass
            thread.join()
            assert len(stream.emitted) < (pieces or 0) + 500
            assert engine.target.native_length() == engine.target.length
            assert engine.generate("One two three", GREEDY, SHORT).result.tokens == expected
        print("bye")
        """
    )
    assert output == "bye\n"


def test_a_handler_of_the_programs_own_keeps_working(run: Run) -> None:
    """One that raises, in the middle of anything; and one that cancels."""
    output = run(
        """
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        engine = load()
        expected = engine.generate("One two three", GREEDY, SHORT).result.tokens
        signal.signal(signal.SIGALRM, ring)
        for number in range(6):
            stream = engine.generate(str(number) + "The sea is wide. " * 90, endless(engine), LONG)
            signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.1 * number)
            try:
                stream.result
                print("not interrupted")
            except Alarm:
                pass
            assert engine.generate("One two three", GREEDY, SHORT).result.tokens == expected
        stream = engine.generate("The sea", endless(engine), LONG)
        signal.signal(signal.SIGINT, lambda *_: stream.cancel())
        for piece in stream:
            signal.raise_signal(signal.SIGINT)
        print(stream.result.finish_reason)
        """
    )
    assert output == "cancelled\n"
