"""Weights: what operations carry, what ranks hold, and what was published."""

from itertools import chain

import pytest
from small_models import LAYOUTS, SEQUENCE, all_layers, gpt, layout, llama
from small_models import training as train

from workloads.flops import active_parameter_count, parameter_count
from workloads.presets import load_model, preset_names
from workloads.spec import ModelSpec, ParallelismSpec
from workloads.stages import stage_chunks

MODELS = [
    gpt(),
    gpt(untie_embeddings_and_output_weights=True, max_position_embeddings=100),
    llama(),
    gpt(num_query_groups=2),
    llama(num_query_groups=1, kv_channels=16),
]
NAMES = ["gpt", "gpt-untied", "llama", "gpt-2-groups", "llama-1-group"]


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_operations_carry_every_weight_once_each_way(
    model: ModelSpec, parallelism: ParallelismSpec
) -> None:
    for forward, backward, _, parameters in all_layers(model, train(), parallelism):
        assert sum(op.parameters for op in forward) == parameters
        assert sum(op.parameters for op in backward) == parameters


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_ranks_hold_the_model_and_its_copies(
    model: ModelSpec, parallelism: ParallelismSpec
) -> None:
    """Over one pipeline: the model, t - 1 more copies of norms, row-parallel biases and positions,
    padded words in each table, a second table for tied embeddings on different stages, and copies
    of key and value heads where there are fewer groups than ranks."""
    t, h = parallelism.tensor_model_parallel_size, model.hidden_size
    norm = h * (2 if model.normalization == "LayerNorm" else 1)
    positions = (model.max_position_embeddings or SEQUENCE) * h
    positions *= model.position_embedding_type == "learned_absolute"
    per_layer = 2 * norm + 2 * h * model.add_bias_linear
    replicated = model.num_layers * per_layer + norm + positions
    untied = model.untie_embeddings_and_output_weights
    tables = 2 if untied or parallelism.pipeline_model_parallel_size > 1 else 1
    words = tables * model.padded_vocab_size(t) - model.vocab_size * (1 + untied)
    heads = max(0, t - model.query_groups) * 2 * model.head_dim * (h + model.add_bias_linear)
    held = t * sum(parameters for *_, parameters in all_layers(model, train(), parallelism))
    assert held == (
        parameter_count(model, SEQUENCE)
        + (t - 1) * replicated + words * h + model.num_layers * heads
    )  # fmt: skip


def test_by_hand_on_one_rank() -> None:
    """GPT: 12 h^2 + 13 h per layer, final norm, words and positions; h = 64, 8 layers."""
    expected = 8 * (12 * 64**2 + 13 * 64) + 2 * 64 + 1000 * 64 + 32 * 64
    assert parameter_count(gpt(), seq_length=32) == expected
    held = chain.from_iterable(stage_chunks(gpt(), train(), layout()).values())
    assert sum(layer.parameters for layer in held) == expected + 24 * 64  # 1,024 padded words


PUBLISHED_B = {
    "gpt3-175b": (174.6, "Brown 2020 (arXiv 2005.14165), table D.1"),
    "llama2-7b": (6.738, "Hugging Face model card: 6.74 B"),
    "llama2-13b": (13.016, "Hugging Face model card: 13 B"),
    "llama2-70b": (68.977, "Hugging Face model card: 69 B"),
    "llama3-8b": (8.030, "Hugging Face model card: 8.03 B"),
    "llama3-70b": (70.554, "Hugging Face model card: 70.6 B"),
    "llama3.1-405b": (405.85, "Hugging Face model card: 406 B"),
}
"""Billions of weights, counted by those who publish the weights."""


@pytest.mark.parametrize("name", PUBLISHED_B)
def test_published_counts(name: str) -> None:
    model = load_model(name)
    assert parameter_count(model) == pytest.approx(PUBLISHED_B[name][0] * 1e9, rel=5e-4)


EXACT = {
    "llama3.2-1b": (1_235_814_400, 0),
    "llama3.2-3b": (3_212_749_824, 0),
    "mistral-7b": (7_241_732_096, 0),
    "mistral-nemo-12b": (12_247_782_400, 0),
    "mistral-large-123b": (122_610_069_504, 0),
    "gemma-2b": (2_506_172_416, 0),
    "gemma-7b": (8_537_680_896, 0),
    "gpt-neox-20b": (20_554_567_680, 0),
    "pythia-12b": (11_846_072_320, 0),
    "gpt2-xl": (1_557_611_200, 0),
    "qwen2.5-7b": (7_615_616_512, 28 * (3584 + 2 * 4 * 128)),  # biases of q, k, v
    "qwen2.5-32b": (32_763_876_352, 64 * (5120 + 2 * 8 * 128)),
    "qwen2.5-72b": (72_706_203_648, 80 * (8192 + 2 * 8 * 128)),
    "qwen3-8b": (8_190_735_360, 0),
    "qwen3-32b": (32_762_123_264, 0),
    "bloom-176b": (176_247_271_424, 2 * 14336),  # the norm after the embedding
}
"""Weights on the models' Hugging Face pages, and those of them that the preset leaves out."""


@pytest.mark.parametrize("name", EXACT)
def test_published_counts_to_the_weight(name: str) -> None:
    published, left_out = EXACT[name]
    assert parameter_count(load_model(name)) == published - left_out


EXPERTS = {
    "mixtral-8x7b": (46_702_792_704, "Hugging Face, safetensors"),
    "mixtral-8x22b": (140.6e9, "Mistral AI: 141 B in all, 39 B active"),
    "qwen2-57b-a14b": (57.41e9, "Hugging Face model card: 57.4 B"),
    "qwen3-30b-a3b": (30_532_122_624, "Hugging Face, safetensors"),
    "qwen3-235b-a22b": (235_093_634_560, "Hugging Face, safetensors"),
    "deepseek-v2": (235_741_434_880, "Hugging Face, safetensors"),
    "deepseek-v2-lite": (15_706_484_224, "Hugging Face, safetensors"),
    "deepseek-v3": (671e9, "DeepSeek-AI 2024 (arXiv 2412.19437): 671 B"),
    "kimi-k2": (1.03e12, "moonshotai, technical report: 1.04 T; Hugging Face: 1.03 T"),
    "moonlight-16b-a3b": (15.96e9, "moonshotai, model card: 15.96 B"),
    "grok1-314b": (314.9e9 + 0.8e9, "xAI prints 314 B: 314.9 B without the words"),
    "gpt-oss-20b": (20.91e9, "OpenAI model card, table 1"),
    "gpt-oss-120b": (116.83e9, "OpenAI model card, table 1"),
    "llama4-scout": (107.77e9, "Meta: 109 B with 1 B of vision"),
    "llama4-maverick": (400.7e9, "Meta: 400 B"),
}
"""Weights of models with experts, counted by those who publish them."""


@pytest.mark.parametrize("name", EXPERTS)
def test_published_counts_with_experts(name: str) -> None:
    assert parameter_count(load_model(name)) == pytest.approx(EXPERTS[name][0], rel=5e-3)


@pytest.mark.parametrize(
    ("name", "printed_b"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39), ("qwen3-30b-a3b", 3.3), ("deepseek-v3", 37),
     ("deepseek-v2", 21), ("llama4-maverick", 17), ("qwen3-235b-a22b", 22)],
)  # fmt: skip
def test_active_weights(name: str, printed_b: float) -> None:
    assert active_parameter_count(load_model(name)) / 1e9 == pytest.approx(printed_b, rel=0.02)


EMBEDDING_AND_REST_B = {
    "nemotron4-15b": (3.1, 12.5),  # Parmar 2024 (arXiv 2402.16819), section 2, prints 3.2
    "nemotron4-340b": (9.4, 331.6),  # NVIDIA 2024 (arXiv 2406.11704), table 1
}
"""Billions in the two tables of words, and elsewhere."""


@pytest.mark.parametrize("name", EMBEDDING_AND_REST_B)
def test_published_counts_in_two_parts(name: str) -> None:
    model = load_model(name)
    words = 2 * model.vocab_size * model.hidden_size
    rest = parameter_count(model) - words
    assert (round(words / 1e9, 1), round(rest / 1e9, 1)) == EMBEDDING_AND_REST_B[name]


ROUNDED_B = {
    "gpt-7.1b": 7.1, "gpt-16b": 16, "gpt-32b": 32, "gpt-70b": 70, "gpt-119b": 119,
    "gpt-177b": 177, "gpt-314b": 314, "gpt-462b": 462,
    "korthikanti-22b": 22, "korthikanti-175b": 175, "korthikanti-530b": 530,
}  # fmt: skip
"""Billions as printed: Megatron-LM README, images/model_table.png (July 2024), and Korthikanti 2022
(arXiv 2205.05198), table 3."""


@pytest.mark.parametrize("name", ROUNDED_B)
def test_printed_counts_to_the_printed_digit(name: str) -> None:
    """32B, 119B and 462B come out only with biases, learned positions and untied embeddings."""
    printed = ROUNDED_B[name]
    digits = 1 if isinstance(printed, float) else 0
    assert round(parameter_count(load_model(name), 4096) / 1e9, digits) == printed


@pytest.mark.parametrize(("name", "printed_b"), [("gpt-1.7b", 1.7), ("korthikanti-1t", 1000)])
def test_loosely_printed_counts(name: str, printed_b: float) -> None:
    """1.754 B is printed as 1.7 and 1,008 B as 1 T."""
    assert parameter_count(load_model(name), 4096) / 1e9 == pytest.approx(printed_b, rel=0.04)


def test_every_preset_has_a_published_count() -> None:
    loose = {"gpt-1.7b", "korthikanti-1t"}
    checked = {*PUBLISHED_B, *EXACT, *EXPERTS, *EMBEDDING_AND_REST_B, *ROUNDED_B, *loose}
    assert checked == set(preset_names())


def test_positions_left_open_follow_the_sequence() -> None:
    assert parameter_count(gpt(), 100) - parameter_count(gpt(), 0) == 100 * 64
    fixed = gpt(max_position_embeddings=50)
    assert parameter_count(fixed, 100) == parameter_count(fixed, 0)
    assert parameter_count(llama(), 100) == parameter_count(llama(), 0)
