"""A toy target: a llama of random weights that reads and writes bytes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.built_models import byte_tokens

WIDTH, HEADS, INNER, LAYERS = 64, 2, 96, 4
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_toy(path: Path, seed: int = 0, sharpness: float = 3.0) -> Path:
    """Its next token depends on the last few, most of all on the last one."""
    random = np.random.default_rng(seed)
    tokens = [*byte_tokens(), "<s>", "</s>", "th", "he"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 256 + [3, 3, 1, 1])
    writer.add_token_merges(["t h", "h e"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    def noise(name: str, *shape: int, scale: float = 1.0) -> None:
        values = random.normal(0, scale * shape[-1] ** -0.5, shape)
        writer.add_tensor(name, values.astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))

    noise("token_embd.weight", len(tokens), WIDTH, scale=WIDTH**0.5)
    noise("output.weight", len(tokens), WIDTH, scale=sharpness)
    ones("output_norm.weight")
    for block in (f"blk.{layer}." for layer in range(LAYERS)):
        ones(block + "attn_norm.weight")
        ones(block + "ffn_norm.weight")
        for name in ("q", "k", "v", "output"):
            noise(block + f"attn_{name}.weight", WIDTH, WIDTH, scale=0.3)
        noise(block + "ffn_gate.weight", INNER, WIDTH)
        noise(block + "ffn_up.weight", INNER, WIDTH)
        noise(block + "ffn_down.weight", WIDTH, INNER, scale=0.3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
