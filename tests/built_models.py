"""GGUF files built for the tests: tiny models of random weights, and the default one reworded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

WIDTH, INNER, STATE, RANK, CONVOLUTION = 64, 128, 16, 8, 4
SPECIAL = ("<s>", "</s>", "th", "he")  # the tokens of a byte model beside its 256 bytes
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
KEPT = frozenset((*range(33, 127), *range(161, 173), *range(174, 256)))  # bytes with a glyph


_CODES = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTES = {
    "llama": _CODES,
    "t5": _CODES,
    "plamo2": _CODES,
    "rwkv": [f"\\x{byte:02x}" for byte in range(256)],
}
"""One token for each byte, as these tokenizers write it."""


def byte_tokens() -> list[str]:
    """One token for each byte, as byte-level BPE writes it."""
    others = iter(range(256, 512))
    return [chr(byte if byte in KEPT else next(others)) for byte in range(256)]


def write_mamba(path: Path, layers: int = 2, seed: int = 0, *, infill: bool = False) -> Path:
    """A Mamba of random weights that reads and writes bytes; it may have tokens around a gap."""
    gap = ["<PRE>", "<SUF>", "<MID>"] if infill else []
    writer = _byte_model(path, "mamba", context=4096, layers=layers, inner=0, heads=0, gap=gap)
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_add_bos_token(True)

    tokens = len(SPECIAL) + 256 + len(gap)
    noise, ones = _fillers(writer, seed)
    noise("token_embd.weight", tokens, WIDTH, deviation=1.0)
    noise("output.weight", tokens, WIDTH, deviation=2 * WIDTH**-0.5)
    ones("output_norm.weight", WIDTH)
    for block in (f"blk.{layer}." for layer in range(layers)):
        ones(block + "attn_norm.weight", WIDTH)
        noise(block + "ssm_in.weight", 2 * INNER, WIDTH)
        noise(block + "ssm_conv1d.weight", INNER, CONVOLUTION)
        noise(block + "ssm_conv1d.bias", INNER, deviation=0.1)
        noise(block + "ssm_x.weight", RANK + 2 * STATE, INNER)
        noise(block + "ssm_dt.weight", INNER, RANK)
        noise(block + "ssm_dt.bias", INNER, deviation=1.0)
        decay = -np.arange(1, STATE + 1, dtype=np.float32)
        writer.add_tensor(block + "ssm_a", np.tile(decay, (INNER, 1)))
        ones(block + "ssm_d", INNER)
        noise(block + "ssm_out.weight", WIDTH, INNER)
    return _finish(writer, path)


def write_llama(
    path: Path,
    seed: int = 0,
    sharpness: float = 3.0,
    template: str = TEMPLATE,
    tools: str = "",
    architecture: str = "llama",
    pre: str = "gpt-2",
    tokenizer: str = "gpt2",
) -> Path:
    """A llama of random weights that reads and writes bytes, with a chat template or two.

    Its next token depends on the last few, most of all on the last one.
    """
    heads, inner, layers = 2, 96, 4
    writer = _byte_model(
        path,
        architecture,
        context=512,
        layers=layers,
        inner=inner,
        heads=heads,
        pre=pre,
        tokenizer=tokenizer,
    )
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(WIDTH // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    if tools:
        writer.add_string("tokenizer.chat_template.tool_use", tools)

    tokens = len(SPECIAL) + 256
    noise, ones = _fillers(writer, seed)
    noise("token_embd.weight", tokens, WIDTH, deviation=1.0)
    noise("output.weight", tokens, WIDTH, deviation=sharpness * WIDTH**-0.5)
    ones("output_norm.weight", WIDTH)
    for block in (f"blk.{layer}." for layer in range(layers)):
        ones(block + "attn_norm.weight", WIDTH)
        ones(block + "ffn_norm.weight", WIDTH)
        for name in ("q", "k", "v", "output"):
            noise(block + f"attn_{name}.weight", WIDTH, WIDTH, deviation=0.3 * WIDTH**-0.5)
        noise(block + "ffn_gate.weight", inner, WIDTH)
        noise(block + "ffn_up.weight", inner, WIDTH)
        noise(block + "ffn_down.weight", WIDTH, inner, deviation=0.3 * inner**-0.5)
    return _finish(writer, path)


def rewrite_vocabulary(
    source: Path, path: Path, order: np.ndarray, text: Callable[[int, str], str]
) -> Path:
    """A copy of a byte-level BPE model whose token i is token ``order[i]`` of the source.

    Its embedding moves along, so that it is the same model in another id space; ``text(id, text)``
    may replace texts as well (with ids of the source). Merges stay.
    """
    reader = gguf.GGUFReader(source)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value: Any = field.contents()
        if key == "tokenizer.ggml.tokens":
            value = [text(int(i), value[i]) for i in order]
        elif key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
            value = [value[i] for i in order]
        elif key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            value = int(place[value])
        item = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], item)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = data[order]
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path)


def reduce_vocabulary(
    source: Path, path: Path, kept: np.ndarray, layers: int, unknown: int
) -> Path:
    """A draft of the source's first layers that has the tokens `kept` of its target's.

    Its token i is ``kept[i]``; behind them stands the unknown one, with the embedding of the
    source's token `unknown`.
    """
    reader = gguf.GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, arch)
    for key, field in reader.fields.items():
        if key.startswith(f"{arch}.") and key != f"{arch}.vocab_size":
            value: Any = field.contents() if not key.endswith("block_count") else layers
            writer.add_key_value(key, value, field.types[0])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(len(kept) + 1)
    table = gguf.GGUFValueType.INT32
    writer.add_key_value(
        "edgespec.draft_to_target", [*map(int, kept), -1], gguf.GGUFValueType.ARRAY, table
    )
    writer.add_uint32("edgespec.unknown_token", len(kept))
    for tensor in reader.tensors:
        block = tensor.name.split(".")[1]
        if block.isdigit() and int(block) >= layers:
            continue
        data = np.array(tensor.data)
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = data[[*kept, unknown]]
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path)


def write_eagle(
    target: Path,
    path: Path,
    kept: np.ndarray | None,
    layers: tuple[int, ...] = (2, 15, 27),
    own_embedding: bool = False,
    width: int | None = None,
    seed: int = 0,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    **values: Any,
) -> Path:
    """An EAGLE-3 head of random weights for a llama model.

    Args:
        kept: the target's tokens that it proposes; None for all, with the target's output matrix.
        values: replace its metadata, by the key's last part.
    """
    reader = gguf.GGUFReader(target)
    hidden = int(reader.fields["llama.embedding_length"].contents())
    width, heads, keys, inner = width or hidden, 9, 3, 2 * hidden
    writer = gguf.GGUFWriter(path, "eagle3")
    facts: dict[str, Any] = {
        "context_length": 4096,
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": inner,
        "target_hidden_size": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": keys,
        **values,
    }
    for key, value in facts.items():
        writer.add_uint32(f"eagle3.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("eagle3.target_layers", list(layers))
    _copy_tokenizer(reader, writer)
    random = np.random.default_rng(seed)

    def noise(name: str, *shape: int, scale: float = 1.0) -> None:
        values = random.normal(0, scale * shape[-1] ** -0.5, shape).astype(np.float32)
        data = gguf.quants.quantize(values, quantization)
        writer.add_tensor(name, data, raw_dtype=quantization)

    noise("fc.weight", width, len(layers) * hidden)
    part = width // heads
    noise("blk.0.attn_q.weight", heads * part, 2 * width)
    noise("blk.0.attn_k.weight", keys * part, 2 * width)
    noise("blk.0.attn_v.weight", keys * part, 2 * width)
    noise("blk.0.attn_output.weight", width, heads * part)
    noise("blk.0.ffn_gate.weight", inner, width)
    noise("blk.0.ffn_up.weight", inner, width)
    noise("blk.0.ffn_down.weight", width, inner)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
        writer.add_tensor(name + ".weight", np.ones(width, np.float32))
    if kept is not None:
        noise("output.weight", len(kept), width, scale=4.0)
        writer.add_tensor("d2t", np.asarray(kept, np.int64))
    if own_embedding:
        noise("token_embd.weight", len(reader.fields["tokenizer.ggml.tokens"].data), width)
    return _finish(writer, path)


class MedusaWeights(NamedTuple):
    """What a file's rounded weights are: float32, as `write_medusa` describes them."""

    residual: np.ndarray
    bias: np.ndarray
    project: np.ndarray | None
    output: np.ndarray

    def logits(self, state: np.ndarray) -> np.ndarray:
        """Logits of all heads, in float64: (heads, tokens)."""
        x = state.astype(np.float64)
        inner = self.residual @ x + self.bias
        y = x + inner / (1 + np.exp(-inner))
        if self.project is not None:
            y = np.einsum("hij,hj->hi", self.project, y)
        if self.output.ndim == 2:
            return y @ self.output.T
        return np.einsum("hij,hj->hi", self.output, y)


def write_medusa(
    path: Path,
    width: int,
    kept: np.ndarray,
    *,
    heads: int = 4,
    shared: bool = True,
    projected: bool = True,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
    seed: int = 0,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
) -> MedusaWeights:
    """Medusa heads of random weights.

    Args:
        width: of the target's states.
        kept: the target's tokens that they propose.
        shared: whether all have the same output matrix.
        projected: whether they have a matrix before the output.
        change: adds keys.
    """
    writer, random = gguf.GGUFWriter(path, "medusa"), np.random.default_rng(seed)
    writer.add_embedding_length(width)
    writer.add_uint32("medusa.head_count", heads)
    writer.add_array("edgespec.draft_to_target", np.asarray(kept).tolist())
    if change:
        change(writer)

    def noise(name: str, *shape: int) -> np.ndarray:
        values = random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        data = gguf.quants.quantize(values, quantization)
        writer.add_tensor(name, data, raw_dtype=quantization)
        return np.asarray(gguf.quants.dequantize(data, quantization))

    bias = random.normal(0, 1, (heads, width)).astype(np.float32)
    writer.add_tensor("medusa.residual.bias", bias.reshape(-1))
    weights = MedusaWeights(
        noise("medusa.residual.weight", heads, width, width),
        bias,
        noise("medusa.project.weight", heads, width, width) if projected else None,
        noise("output.weight", *(() if shared else (heads,)), len(kept), width),
    )
    _finish(writer, path)
    return weights


def _byte_model(
    path: Path,
    architecture: str,
    *,
    context: int,
    layers: int,
    inner: int,
    heads: int,
    gap: Sequence[str] = (),
    pre: str = "gpt-2",
    tokenizer: str = "gpt2",
) -> gguf.GGUFWriter:
    """A file's sizes, and a tokenizer of bytes; `gap` are the tokens around one, if any."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre)
    tokens = [*_BYTES.get(tokenizer, byte_tokens()), *SPECIAL]
    if tokenizer != "gpt2":
        writer.add_token_scores([0.0] * len(tokens))
    for name, number in zip(("fim_pre", "fim_suf", "fim_mid"), range(len(gap)), strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", len(tokens) + number)
    kinds = [6 if "<0x00>" in tokens else 1] * 256 + [3, 3, 1, 1]
    if tokenizer == "plamo2":  # whose first token is no byte
        tokens, kinds = tokens[-1:] + tokens[:-1], kinds[-1:] + kinds[:-1]
    writer.add_token_list([*tokens, *gap])
    writer.add_token_types(kinds + [3] * len(gap))
    writer.add_token_merges(["t h", "h e"])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    return writer


def _fillers(
    writer: gguf.GGUFWriter, seed: int, *, quantized: bool = False
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two ways to add a tensor by name and shape: normal noise, and ones."""
    random = np.random.default_rng(seed)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def noise(name: str, *shape: int, deviation: float | None = None) -> None:
        values = random.normal(0, deviation or shape[-1] ** -0.5, shape).astype(np.float32)
        if quantized and len(shape) > 1 and not name.endswith("gate_inp.weight"):
            writer.add_tensor(name, gguf.quants.quantize(values, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name, values)

    def ones(name: str, *shape: int) -> None:
        writer.add_tensor(name, np.ones(shape, np.float32))

    return noise, ones


def _copy_tokenizer(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            item = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], item)


def _finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_experts(path: Path, seed: int = 0) -> Path:
    """A llama with a mixture of four experts, of which two are used for a token."""
    heads, inner, layers, experts = 2, 96, 2, 4
    writer = _byte_model(path, "llama", context=512, layers=layers, inner=inner, heads=heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(WIDTH // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_add_bos_token(False)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)

    noise, ones = _fillers(writer, seed)
    noise("token_embd.weight", len(SPECIAL) + 256, WIDTH, deviation=1.0)
    ones("output_norm.weight", WIDTH)
    for block in (f"blk.{layer}." for layer in range(layers)):
        ones(block + "attn_norm.weight", WIDTH)
        ones(block + "ffn_norm.weight", WIDTH)
        for name in ("q", "k", "v", "output"):
            noise(block + f"attn_{name}.weight", WIDTH, WIDTH)
        noise(block + "ffn_gate_inp.weight", experts, WIDTH)
        noise(block + "ffn_gate_exps.weight", experts, inner, WIDTH)
        noise(block + "ffn_up_exps.weight", experts, inner, WIDTH)
        noise(block + "ffn_down_exps.weight", experts, WIDTH, inner)
    return _finish(writer, path)


def write_windowed(path: Path, window: int = 64, layers: int = 4, seed: int = 0) -> Path:
    """A Gemma 3 whose layers, but for every second, see a window of so many tokens."""
    heads, head_width, inner = 2, 32, 96
    writer = _byte_model(path, "gemma3", context=2048, layers=layers, inner=inner, heads=heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_freq_base(10000.0)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    noise, ones = _fillers(writer, seed)
    noise("token_embd.weight", len(SPECIAL) + 256, WIDTH, deviation=1.0)
    ones("output_norm.weight", WIDTH)
    for block in (f"blk.{layer}." for layer in range(layers)):
        for name in ("attn_norm", "ffn_norm", "post_ffw_norm"):
            ones(f"{block}{name}.weight", WIDTH)
        # What it attends to counts as much as the last token.
        writer.add_tensor(block + "post_attention_norm.weight", np.full(WIDTH, 8, np.float32))
        for name in ("q", "k"):
            ones(f"{block}attn_{name}_norm.weight", head_width)
        noise(block + "attn_q.weight", heads * head_width, WIDTH)
        noise(block + "attn_k.weight", head_width, WIDTH)
        noise(block + "attn_v.weight", head_width, WIDTH)
        noise(block + "attn_output.weight", WIDTH, heads * head_width)
        noise(block + "ffn_gate.weight", inner, WIDTH)
        noise(block + "ffn_up.weight", inner, WIDTH)
        noise(block + "ffn_down.weight", WIDTH, inner)
    return _finish(writer, path)


def write_hybrid(path: Path, layers: int = 4, seed: int = 0) -> Path:
    """An LFM2: every second layer is a short convolution with a state, the others attend."""
    heads, inner = 2, 96
    writer = _byte_model(path, "lfm2", context=2048, layers=layers, inner=inner, heads=heads)
    writer.add_head_count_kv([0 if layer % 2 == 0 else heads for layer in range(layers)])
    writer.add_rope_freq_base(10000.0)
    writer.add_shortconv_l_cache(CONVOLUTION)
    writer.add_vocab_size(len(SPECIAL) + 256)
    writer.add_add_bos_token(False)

    noise, ones = _fillers(writer, seed)
    noise("token_embd.weight", len(SPECIAL) + 256, WIDTH, deviation=1.0)
    ones("token_embd_norm.weight", WIDTH)
    for layer in range(layers):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight", WIDTH)
        ones(block + "ffn_norm.weight", WIDTH)
        if layer % 2 == 0:
            noise(block + "shortconv.conv.weight", WIDTH, CONVOLUTION)
            noise(block + "shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
            noise(block + "shortconv.out_proj.weight", WIDTH, WIDTH)
        else:
            for name in ("q", "k"):
                ones(f"{block}attn_{name}_norm.weight", WIDTH // heads)
            for name in ("q", "k", "v", "output"):
                noise(f"{block}attn_{name}.weight", WIDTH, WIDTH)
        noise(block + "ffn_gate.weight", inner, WIDTH)
        noise(block + "ffn_up.weight", inner, WIDTH)
        noise(block + "ffn_down.weight", WIDTH, inner)
    return _finish(writer, path)


def write_bert(path: Path, pooling: gguf.PoolingType = gguf.PoolingType.MEAN) -> Path:
    """A BERT of random weights that reads words of small Latin letters."""
    heads, layers, context = 2, 2, 128
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokens = [*marks, *(f"\u2581{letter}" for letter in letters), *letters, "\u2581the", "\u2581."]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(marks) + [1] * (len(tokens) - len(marks)))
    writer.add_token_type_count(2)
    for name, number in {"unknown": 1, "bos": 2, "eos": 3, "seperator": 3, "padding": 0}.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", number)

    noise, ones = _fillers(writer, 0)

    def both(name: str, *shape: int) -> None:
        noise(f"{name}.weight", *shape)
        noise(f"{name}.bias", shape[0], deviation=0.1)

    def norm(name: str) -> None:
        ones(f"{name}.weight", WIDTH)
        noise(f"{name}.bias", WIDTH, deviation=0.1)

    noise("token_embd.weight", len(tokens), WIDTH, deviation=1.0)
    noise("token_types.weight", 2, WIDTH)
    noise("position_embd.weight", context, WIDTH, deviation=0.5)
    norm("token_embd_norm")
    for block in (f"blk.{layer}." for layer in range(layers)):
        for part in ("q", "k", "v", "output"):
            both(f"{block}attn_{part}", WIDTH, WIDTH)
        norm(block + "attn_output_norm")
        both(block + "ffn_up", INNER, WIDTH)
        both(block + "ffn_down", WIDTH, INNER)
        norm(block + "layer_output_norm")
    return _finish(writer, path)


def write_qwen35(path: Path, layers: int = 4, seed: int = 0, *, further: int = 1) -> Path:
    """A Qwen3.5: gated delta nets, attention in every second layer, and a layer for MTP behind.

    Its next token depends most on the last one. The layer behind starts from the embedding of the
    token it reads and adds little to it, so that it is often right.
    """
    heads, head_width, inner, state, groups, values = 2, 32, 96, 16, 2, 4
    whole = layers + further
    writer = _byte_model(path, "qwen35", context=2048, layers=whole, inner=inner, heads=heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_rope_dimension_sections([4, 2, 2, 0])
    writer.add_ssm_conv_kernel(CONVOLUTION)
    writer.add_ssm_inner_size(values * state)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_group_count(groups)
    writer.add_uint32("qwen35.full_attention_interval", 2)
    writer.add_uint32("qwen35.nextn_predict_layers", further)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    noise, ones = _fillers(writer, seed)
    tokens = len(SPECIAL) + 256
    noise("token_embd.weight", tokens, WIDTH, deviation=1.0)
    noise("output.weight", tokens, WIDTH, deviation=3 * WIDTH**-0.5)
    ones("output_norm.weight", WIDTH)
    mixed = 2 * groups * state + values * state
    for layer in range(whole):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight", WIDTH)
        ones(block + "post_attention_norm.weight", WIDTH)
        if layer % 2 == 0 and layer < layers:
            noise(block + "attn_qkv.weight", mixed, WIDTH)
            noise(block + "attn_gate.weight", values * state, WIDTH)
            noise(block + "ssm_conv1d.weight", mixed, CONVOLUTION)
            noise(block + "ssm_dt.bias", values, deviation=1.0)
            writer.add_tensor(block + "ssm_a", -np.linspace(0.1, 1, values, dtype=np.float32))
            noise(block + "ssm_beta.weight", values, WIDTH)
            noise(block + "ssm_alpha.weight", values, WIDTH)
            ones(block + "ssm_norm.weight", state)
            noise(block + "ssm_out.weight", WIDTH, values * state, deviation=0.03)
        else:
            for name in ("q", "k"):
                ones(f"{block}attn_{name}_norm.weight", head_width)
            noise(block + "attn_q.weight", 2 * heads * head_width, WIDTH)
            noise(block + "attn_k.weight", head_width, WIDTH)
            noise(block + "attn_v.weight", head_width, WIDTH)
            noise(block + "attn_output.weight", WIDTH, heads * head_width, deviation=0.03)
        noise(block + "ffn_gate.weight", inner, WIDTH)
        noise(block + "ffn_up.weight", inner, WIDTH)
        noise(block + "ffn_down.weight", WIDTH, inner, deviation=0.02)
    for layer in range(layers, whole):
        _add_further(writer, noise, ones, layer)
    return _finish(writer, path)


def write_glm4moe(
    path: Path, layers: int = 3, seed: int = 0, *, further: int = 1, quantized: bool = False
) -> Path:
    """A GLM-4.5 of experts, the first layer dense, with a layer for MTP as `write_qwen35` has.

    Its matrices are Q8_0 if `quantized`.
    """
    heads, inner, experts = 2, 96, 4
    whole = layers + further
    writer = _byte_model(path, "glm4moe", context=2048, layers=whole, inner=inner, heads=heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(WIDTH // heads)
    writer.add_value_length(WIDTH // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(inner)
    writer.add_leading_dense_block_count(1)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_uint32("glm4moe.nextn_predict_layers", further)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    noise, ones = _fillers(writer, seed, quantized=quantized)
    tokens = len(SPECIAL) + 256
    noise("token_embd.weight", tokens, WIDTH, deviation=1.0)
    noise("output.weight", tokens, WIDTH, deviation=3 * WIDTH**-0.5)
    ones("output_norm.weight", WIDTH)
    for layer in range(whole):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight", WIDTH)
        ones(block + "post_attention_norm.weight", WIDTH)
        noise(block + "attn_q.weight", WIDTH, WIDTH)
        for name in ("k", "v"):
            noise(f"{block}attn_{name}.weight", WIDTH // heads, WIDTH)
        noise(block + "attn_output.weight", WIDTH, WIDTH, deviation=0.03)
        for end in ("",) if layer == 0 else ("_exps", "_shexp"):
            count = (experts,) if end == "_exps" else ()
            noise(f"{block}ffn_gate{end}.weight", *count, inner, WIDTH)
            noise(f"{block}ffn_up{end}.weight", *count, inner, WIDTH)
            noise(f"{block}ffn_down{end}.weight", *count, WIDTH, inner, deviation=0.02)
        if layer:
            noise(block + "ffn_gate_inp.weight", experts, WIDTH)
            noise(block + "exp_probs_b.bias", experts, deviation=0.1)
    for layer in range(layers, whole):
        _add_further(writer, noise, ones, layer)
    return _finish(writer, path)


def _add_further(
    writer: gguf.GGUFWriter, noise: Callable[..., None], ones: Callable[..., None], layer: int
) -> None:
    """Add what makes a layer one that predicts a further token: mostly from the token it reads."""
    block = f"blk.{layer}.nextn."
    random = np.random.default_rng(layer)
    states = random.normal(0, 0.15 * WIDTH**-0.5, (WIDTH, WIDTH))
    both = np.concatenate((np.eye(WIDTH), states), axis=1)
    writer.add_tensor(block + "eh_proj.weight", both.astype(np.float32))
    writer.add_tensor(
        block + "enorm.weight", (1 + 0.1 * random.normal(size=WIDTH)).astype(np.float32)
    )
    noise(block + "hnorm.weight", WIDTH, deviation=1.0)
    ones(block + "shared_head_norm.weight", WIDTH)
