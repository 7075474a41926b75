"""Texts that tell the parts of an answer apart: reasoning, and where calls begin and end."""

from __future__ import annotations

import re

__all__ = [
    "CHANNEL",
    "LONGEST_NAME",
    "LOOSE",
    "MARKS",
    "OPENING",
    "PART",
    "SPACED",
    "THOUGHTS",
    "opened_thought",
]

THOUGHTS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought\n": "<channel|>",
    "◁think▷": "◁/think▷",
}
# Marks that a call follows. Those of the second group are a part of it.
OPENING = (
    *(
        "<tool_call>",
        "<tool_calls>",
        "<tools>",
        "<|tool_call|>",
        "<|tool_call>",
        "<seed:tool_call>",
    ),
    *("<|tool_call_start|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<TOOLCALL>"),
    *("[TOOL_CALLS]", "[TOOL_REQUEST]", "<|python_tag|>", "<start_function_call>", "functools["),
    *("<minimax:tool_call>", "<function_call>", "<function_calls>", "<|START_ACTION|>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜DSML｜function_calls>"),
    *("<|action_start|>", "<|tools_prefix|>", "<longcat_tool_call>"),
)
PART = ("<function=", "<function name=", "<invoke name=", "<｜DSML｜invoke name=")
CHANNEL = ("<|channel|>", "<|start|>")
_CLOSING = (
    *("</tool_call>", "<tool_call|>", "<|tool_call_end|>", "<end_function_call>", "<|/tool_call|>"),
    *(
        "<|tool_calls_section_end|>",
        "<|END_ACTION|>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<|action_end|>", "<|tools_suffix|>", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>"),
    *("[ARGS]", "[CALL_ID]", "<escape>", '<|"|>', "<|message|>", "<|constrain|>", "<|end|>"),
    *("<|plugin|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</seed:tool_call>"),
)
MARKS = frozenset((*THOUGHTS, *THOUGHTS.values(), *OPENING, *PART, *CHANNEL, *_CLOSING))
"""Texts that tell parts of an answer apart; where they are control tokens they have to be shown."""

LOOSE = re.compile(
    r"(?:[\s,;\]})]|```(?![\w-])|</[\w:|｜-]{1,40}>|<\|/?[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>"
    r"|<[\w]{1,40}\|>|<end_function_call>|\[/\w{1,40}\]|\[END_TOOL_REQUEST\])*"
)
SPACED = re.compile(r"(?:[\s,;]|</[\w:|｜-]{1,40}>)*")
LONGEST_NAME = 200


def opened_thought(prompt: str, begun: str = "") -> str:
    """Return what ends the reasoning that a prompt's end has begun; empty if it has begun none.

    Args:
        prompt: as the chat template rendered it.
        begun: the message that is continued, if one is.
    """
    for opening, closing in THOUGHTS.items():
        inside = begun.rfind(opening) > begun.rfind(closing)
        if inside or (not begun and prompt.rstrip().endswith(opening.rstrip())):
            return closing
    return ""
