"""Event loops: never blocked, cancelled with their tasks; many generations at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgespec import GenerationLimits, SamplingParameters, Session
from edgespec.errors import ContextFullError

GREEDY = SamplingParameters(temperature=0.0)


@pytest.fixture
def engine(open_engine: Any) -> Any:
    return open_engine(draft="ngram")


def endless(engine: Any) -> SamplingParameters:
    ends = dict.fromkeys(engine.vocabulary.end_tokens, float("-inf"))
    return SamplingParameters(temperature=0.0, logit_bias=ends)


def test_pieces_come_while_the_loop_does_other_work(engine: Any) -> None:
    limits = GenerationLimits(max_tokens=24)
    expected = engine.generate("The sea is", GREEDY, limits).result
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async def main() -> None:
        other = asyncio.create_task(beat())
        stream = engine.generate("The sea is", GREEDY, limits)
        texts = []
        before = beats
        async for piece in stream:
            texts.append(piece.text)
            assert beats > before  # the loop went round since the last piece
            before = beats
            await asyncio.sleep(0)
        other.cancel()
        assert "".join(texts) == expected.text
        assert stream.result.tokens == expected.tokens

    asyncio.run(main())


def test_many_at_once_say_what_they_say_alone(engine: Any, plain: Any) -> None:
    prompts = [f"Item {number} of the list is" for number in range(6)]

    async def main() -> list[Any]:
        streams = [
            engine.generate(prompt, GREEDY, GenerationLimits(max_tokens=10)) for prompt in prompts
        ]
        return await asyncio.gather(*(stream.wait() for stream in streams))

    for prompt, result in zip(prompts, asyncio.run(main()), strict=True):
        assert list(result.tokens) == plain.greedy(engine.tokenize(prompt).tolist(), 10)


def test_a_cancelled_task_cancels_its_generation(engine: Any) -> None:
    async def main() -> Any:
        stream = engine.generate("The sea is", endless(engine), GenerationLimits(max_tokens=1500))
        started = asyncio.Event()

        async def read() -> None:
            async for _ in stream:
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    stream = asyncio.run(main())
    assert stream.cancelled
    after = engine.generate("One two", GREEDY, GenerationLimits(max_tokens=4)).result
    assert len(after.tokens) == 4
    assert len(stream.emitted) < 1500


def test_an_error_reaches_the_task(engine: Any) -> None:
    async def main() -> None:
        with pytest.raises(ContextFullError):
            await engine.generate("word " * 5000, GREEDY).wait()

    asyncio.run(main())


def test_a_turn_of_a_session_is_asynchronous_too(engine: Any) -> None:
    session = Session(engine, sampling=GREEDY, limits=GenerationLimits(max_tokens=8))

    async def main() -> str:
        turn = session.send("Name a river.")
        return "".join([piece.text async for piece in turn])

    assert asyncio.run(main()) == session.messages[-1].content


def test_the_loop_goes_round_while_a_prompt_is_read_and_others_wait(engine: Any) -> None:
    async def main() -> None:
        streams = [
            engine.generate(f"{number}: " + "quite new. " * 120, GREEDY, GenerationLimits(1))
            for number in range(2)
        ]
        waiting = [asyncio.create_task(stream.wait()) for stream in streams]
        rounds = 0
        while not all(task.done() for task in waiting):
            rounds += 1
            await asyncio.sleep(0)
        # A loop that waits for a prompt, or for its turn, goes round once or twice.
        assert rounds > 100
        assert all(len(task.result().tokens) == 1 for task in waiting)

    asyncio.run(main())


def test_a_loop_that_is_gone_ends_its_generations(engine: Any) -> None:
    async def main() -> Any:
        stream = engine.generate("The sea is", endless(engine), GenerationLimits(max_tokens=1500))
        pieces = stream.__aiter__()
        await pieces.__anext__()
        return stream, pieces

    loop = asyncio.new_event_loop()
    stream, pieces = loop.run_until_complete(main())
    loop.close()
    after = engine.generate("One two", GREEDY, GenerationLimits(max_tokens=4)).result
    assert len(after.tokens) == 4
    assert stream.cancelled
    assert len(stream.emitted) < 1500
    del pieces
