"""Reasoning, text and tool calls of an answer, told apart while it is written."""

from edgespec.compat.openai.calls.answer import (
    Answer,
    Arguments,
    Broken,
    CallBegin,
    Event,
    Text,
    Thought,
    ToolCall,
    call_id,
    whole_answer,
)
from edgespec.compat.openai.calls.cursor import MARKS, THOUGHTS, opened_thought
from edgespec.compat.openai.calls.reader import CallReader, read_answer, read_calls

__all__ = [
    "MARKS",
    "THOUGHTS",
    "Answer",
    "Arguments",
    "Broken",
    "CallBegin",
    "CallReader",
    "Event",
    "Text",
    "Thought",
    "ToolCall",
    "call_id",
    "opened_thought",
    "read_answer",
    "read_calls",
    "whole_answer",
]
