"""Models: bytes and parameters against figures counted by hand or published, names, config.json files, refusals."""

from __future__ import annotations

import json

import pytest

from hicache_ref.config.models import (
    CATALOGUE,
    SLIDING_WINDOW,
    STATE_SPACE,
    Mla,
    ModelError,
    Nsa,
    find_model,
    from_config_json,
    load_model,
)

SERVED = [shape for shape in CATALOGUE.values() if shape.unsupported_reason is None]

# (model, tp, KV dtype) -> bytes of a token on one rank, counted by hand.
KV_BYTES = [
    ("Llama-3.1-8B", 1, "auto", 131072),  # 2 * 32 layers * 8 heads * 128 * 2 bytes
    ("Llama-3.1-8B", 2, "auto", 65536),
    ("Llama-3.1-8B", 8, "auto", 16384),
    ("Llama-3.1-8B", 16, "auto", 16384),  # more ranks than KV heads: each keeps one
    ("Llama-3.1-8B", 1, "fp8_e4m3", 65536),
    ("Llama-3.1-8B", 1, "fp4_e2m1", 36864),  # 64 + 8 bytes for a row of 128
    ("Llama-3.1-70B", 1, "auto", 327680),
    ("Llama-3.1-70B", 8, "auto", 40960),
    ("Qwen2.5-7B", 1, "auto", 57344),
    ("Qwen2.5-7B", 4, "auto", 14336),
    ("Qwen2.5-72B", 1, "auto", 327680),
    ("Qwen3-8B", 1, "auto", 147456),
    ("Qwen3-14B", 1, "auto", 163840),
    ("Qwen3-32B", 1, "auto", 262144),
    ("Qwen3-32B", 4, "bf16", 65536),
    ("Qwen3-235B-A22B", 1, "auto", 192512),
    ("Qwen3-235B-A22B", 8, "auto", 48128),  # 4 KV heads over 8 ranks: 2 * 94 * 128 * 2
    ("DeepSeek-V3", 1, "auto", 70272),  # 576 * 61 * 2
    ("DeepSeek-V3", 8, "auto", 70272),
    ("DeepSeek-V3", 8, "fp8_e4m3", 35136),
    ("DeepSeek-R1", 1, "auto", 70272),
    ("DeepSeek-V3.2", 1, "auto", 70272),
    ("DeepSeek-V3.2", 8, "fp8_e4m3", 40016),  # (512 + 4 * 4 + 64 * 2) * 61
    ("Kimi-K2", 16, "auto", 70272),
    ("GLM-4.5", 1, "auto", 376832),
    ("GLM-4.6", 8, "auto", 47104),
    ("GLM-4.5-Air", 1, "auto", 188416),
]

# Parameters as the checkpoints on Hugging Face have them. MoE cards round, so those are checked in billions.
PARAMETERS = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Qwen3-235B-A22B": 235_093_634_560,
    "DeepSeek-V3": 671_026_419_200,
}
BILLIONS = {  # total, active, as the cards say; ours count embeddings as active and no MTP layer
    "Qwen3-235B-A22B": (235, 22),
    "DeepSeek-V3": (671, 37),
    "DeepSeek-R1": (671, 37),
    "Kimi-K2": (1026, 32),
    "GLM-4.5": (355, 32),
    "GLM-4.5-Air": (106, 12),
}


@pytest.mark.parametrize(("name", "tp_size", "dtype", "expected"), KV_BYTES)
def test_kv_bytes_per_token(name, tp_size, dtype, expected):
    assert find_model(name).kv_bytes_per_token(tp_size, dtype) == expected


def test_every_served_model_has_a_hand_counted_row():
    assert {shape.name for shape in SERVED} == {row[0] for row in KV_BYTES}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_follow_from_the_shape(name):
    assert find_model(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", BILLIONS)
def test_mixtures_agree_with_their_cards(name):
    total, active = BILLIONS[name]
    shape = find_model(name)
    assert shape.parameters / 1e9 == pytest.approx(total, rel=0.01)
    assert active <= shape.active_parameters / 1e9 < active * 1.13


@pytest.mark.parametrize("shape", CATALOGUE.values(), ids=lambda shape: shape.name)
def test_catalogue_entries_are_whole(shape):
    assert shape.source.startswith("config.json of ")
    assert shape.flops_per_token() == 2 * shape.active_parameters
    assert 0 < shape.layer_flops_per_token < shape.flops_per_token()
    assert shape.attention.name in {"mha", "mla", "nsa"}


def test_ranks_share_weights():
    llama, deepseek = find_model("llama-3.1-8b"), find_model("deepseek-v3")
    assert llama.weight_bytes(1) == 2 * llama.parameters
    # Norms stand on every rank, everything else is split.
    norms = (2 * 32 + 1) * 4096
    assert llama.weight_bytes(4) == (llama.parameters - norms) * 2 // 4 + 2 * norms
    assert 671e9 < deepseek.weight_bytes(1) < 676e9  # one byte each, scales, and two for what is not linear
    assert deepseek.weight_bytes(1) / 8 < deepseek.weight_bytes(8) < deepseek.weight_bytes(1) / 7
    # KV projections are repeated where there are more ranks than KV heads.
    assert llama.rank_weights(16).linear > llama.rank_weights(1).linear // 16


def test_what_replication_means():
    mha, mla = find_model("qwen3-8b").attention, find_model("kimi-k2").attention
    assert not mha.replicated
    assert mha.components == ("k", "v")
    assert (mha.local_heads(8), mha.local_kv_heads(8), mha.local_kv_heads(32)) == (4, 1, 1)
    assert mla.replicated
    assert mla.components == ("k",)
    assert (mla.local_heads(8), mla.local_kv_heads(8)) == (8, 1)


def test_nsa_keeps_more_on_the_device_than_it_moves():
    shape = find_model("deepseek-ai/DeepSeek-V3.2-Exp")
    assert shape.forced_page_size == 64
    assert find_model("deepseek-v3").forced_page_size is None
    assert shape.device_bytes_per_token(8) - shape.kv_bytes_per_token(8) == 61 * 132  # 128 of FP8 and one FP32 scale
    assert shape.attention.row_bytes(shape.kv_format("fp8_e4m3")) == 656


@pytest.mark.parametrize("tp_size", [3, 5, 64, 0])
def test_heads_that_do_not_split(tp_size):
    with pytest.raises(ModelError, match="heads") as error:
        find_model("Llama-3.1-8B").kv_bytes_per_token(tp_size)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "expected", "dtype"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", "bfloat16"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "Llama-3.1-70B", "bfloat16"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B", "bfloat16"),
        ("Qwen/Qwen3-32B", "Qwen3-32B", "bfloat16"),
        ("Qwen/Qwen3-32B-FP8", "Qwen3-32B", "fp8"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507-FP8", "Qwen3-235B-A22B", "fp8"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B", "bfloat16"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1", "fp8"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3", "fp8"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepSeek-V3", "fp8"),
        ("moonshotai/Kimi-K2-Instruct-0905", "Kimi-K2", "fp8"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2", "int4"),
        ("zai-org/GLM-4.6-FP8", "GLM-4.6", "fp8"),
        ("GLM_4.5_Air", "GLM-4.5-Air", "bfloat16"),
    ],
)
def test_names_people_use(name, expected, dtype):
    shape = load_model(name)
    assert (shape.name, shape.dtype) == (expected, dtype)


def test_an_unknown_model_names_the_known_and_the_near():
    with pytest.raises(ModelError) as error:
        load_model("Qwen/Qwen3-33B")
    text = str(error.value)
    assert "did you mean Qwen3-32B" in text
    assert all(name in text for name in CATALOGUE)
    assert "\n" not in text
    with pytest.raises(ModelError, match="unknown model"):
        load_model("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")  # not DeepSeek-R1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openai/gpt-oss-120b", SLIDING_WINDOW),
        ("google/gemma-3-27b-it", SLIDING_WINDOW),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", SLIDING_WINDOW),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", STATE_SPACE),
    ],
)
def test_refused_models_load_with_the_reason(name, reason):
    found = load_model(name).unsupported_reason
    assert found == reason
    assert found.startswith("HiRadixCache only supports MHA and MLA yet")
    assert "\n" not in found


# --- config.json ------------------------------------------------------------------------------------------------

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "torch_dtype": "bfloat16", "sliding_window": 131072, "use_sliding_window": False,
}  # fmt: skip
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096, "head_dim": 128,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8,
    "num_attention_heads": 64, "num_hidden_layers": 94, "num_key_value_heads": 4, "vocab_size": 151936,
    "mlp_only_layers": [], "attention_bias": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_attention_heads": 128, "num_key_value_heads": 128,
    "num_hidden_layers": 61, "first_k_dense_replace": 3, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "vocab_size": 129280, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
DEEPSEEK_V32 = DEEPSEEK | {
    "architectures": ["DeepseekV32ForCausalLM"], "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
GLM = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 5120, "head_dim": 128,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_attention_heads": 96, "num_key_value_heads": 8,
    "num_hidden_layers": 92, "vocab_size": 151552, "attention_bias": True, "use_qk_norm": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def _write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "Llama-3.1-8B"),
        (QWEN2, "Qwen2.5-7B"),
        (QWEN3_MOE, "Qwen3-235B-A22B"),
        (DEEPSEEK, "DeepSeek-V3"),
        (DEEPSEEK_V32, "DeepSeek-V3.2"),
        (GLM, "GLM-4.5"),
    ],
)
def test_a_config_gives_the_catalogue_shape(tmp_path, config, name):
    read, known = load_model(_write(tmp_path, config)), find_model(name)
    assert read.attention == known.attention
    assert read.blocks == known.blocks
    assert (read.hidden, read.vocab, read.dtype) == (known.hidden, known.vocab, known.dtype)
    assert read.parameters == known.parameters
    assert from_config_json(tmp_path / "config.json") == read


def test_generic_grouped_query_config(tmp_path):
    shape = load_model(_write(tmp_path, {k: v for k, v in LLAMA.items() if k not in {"architectures", "model_type"}}))
    assert shape.kv_bytes_per_token() == 131072
    old = load_model(_write(tmp_path, {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}))
    assert old.kv_heads == 32


def test_multimodal_configs_wrap_the_decoder(tmp_path):
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": LLAMA}
    shape = load_model(_write(tmp_path, config))
    assert shape.layers == 32
    assert shape.unsupported_reason == SLIDING_WINDOW


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("GptOssForCausalLM", SLIDING_WINDOW),
        ("MiMoV2FlashForCausalLM", SLIDING_WINDOW),
        ("Llama4ForConditionalGeneration", SLIDING_WINDOW),
        ("Qwen3NextForCausalLM", STATE_SPACE),
        ("JambaForCausalLM", STATE_SPACE),
        ("FalconH1ForCausalLM", STATE_SPACE),
        ("NemotronHForCausalLM", STATE_SPACE),
    ],
)
def test_refused_architectures(tmp_path, architecture, reason):
    shape = load_model(_write(tmp_path, LLAMA | {"architectures": [architecture]}))
    assert shape.unsupported_reason == reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a model's config"),
        ('{"hidden_size": 8}', "has no 'vocab_size'"),
        (json.dumps(LLAMA | {"quantization_config": {"quant_method": "magic"}}), "unknown quant_method"),
    ],
)
def test_configs_that_cannot_be_read(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=message) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="cannot read"):
        from_config_json(tmp_path / "elsewhere.json")


@pytest.mark.parametrize(
    ("quantisation", "dtype"),
    [
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, "fp8"),
    ],
)
def test_quantised_checkpoints(tmp_path, quantisation, dtype):
    shape = load_model(_write(tmp_path, LLAMA | {"quantization_config": quantisation}))
    assert shape.dtype == dtype
    assert shape.weight_bytes() < find_model("Llama-3.1-8B").weight_bytes()


def test_an_unknown_cache_dtype():
    with pytest.raises(ModelError, match="known: bf16, bfloat16"):
        find_model("Qwen3-8B").kv_bytes_per_token(1, "int3")


# --- work -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Qwen3-8B", "DeepSeek-V3", "DeepSeek-V3.2"])
def test_attention_in_chunks_costs_no_less_than_at_once(name):
    shape = find_model(name)
    whole = shape.attention_flops(0, 6000)
    chunks = sum(shape.attention_flops(prefix, 2000) for prefix in (0, 2000, 4000))
    assert chunks == whole if name != "DeepSeek-V3" else chunks >= whole  # MLA unpacks the prefix again


def test_mla_attends_latent_rows_where_that_is_cheaper():
    mla = find_model("DeepSeek-V3").attention
    assert isinstance(mla, Mla)
    absorbed = 2 * (576 + 512) * 128
    assert mla.prefill_flops(100_000, 1) == absorbed * 100_001
    assert mla.prefill_flops(0, 1000) == 2 * (192 + 128) * 128 * 500_500


def test_sparse_attention_stops_growing_but_its_index_does_not():
    nsa = find_model("DeepSeek-V3.2").attention
    assert isinstance(nsa, Nsa)
    index = 2 * 64 * 128
    assert nsa.prefill_flops(9001, 1) - nsa.prefill_flops(9000, 1) == index
    assert nsa.prefill_flops(101, 1) - nsa.prefill_flops(100, 1) == index + 2 * (576 + 512) * 128
    assert nsa.prefill_flops(2040, 20) == sum(nsa.prefill_flops(2040 + i, 1) for i in range(20))


def test_experts_touched_by_a_batch():
    moe = find_model("DeepSeek-V3").blocks[1][1]
    routed = 256 / 257
    assert moe.touched(1) == pytest.approx(8 / 256 * routed + 1 / 257)
    assert moe.touched(10_000) == pytest.approx(1.0)
    assert moe.touched(1) < moe.touched(2) < moe.touched(64) < 1.0
