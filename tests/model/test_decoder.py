"""The decoder computes what its family computes, and its weights come from where they should."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hicache_ref.config.models import Dense, ModelError, Moe, find_model
from hicache_ref.model.decoder import load_model, random_model
from hicache_ref.model.positions import Rotary
from hicache_ref.model.rows import Row, RowError
from hicache_ref.model.scaling import scale
from hicache_ref.model.spec import FAMILIES, Positions, Routing, spec_from_folder, spec_of
from hicache_ref.model.weights import Seeded

from . import textbook
from .small import KINDS, model_of, prompt, runner_for, runner_of


def _logits(model, tokens):
    return runner_for(model, "float32", 4, 16).forward_all([Row(tokens, 0, np.arange(4))]).logits.double()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_textbook(kind):
    model = model_of(kind)
    tokens = prompt(model, 20).tolist()
    expected = textbook.logits(model.spec, model.source, tokens)
    assert torch.allclose(_logits(model, tokens), expected, atol=1e-4)


def test_experts_in_groups():
    spec = scale(find_model("DeepSeek-V3"), factor=0.001)
    spec = replace(spec, routing=Routing("sigmoid", True, 2.5, groups=4, top_groups=2, group_best=2))
    model, tokens = random_model(spec, 5), list(range(0, 300, 13))
    assert torch.allclose(_logits(model, tokens), textbook.logits(spec, model.source, tokens), atol=1e-4)


def test_output_bias_and_queries_without_low_rank():
    llama = scale(find_model("Llama-3.1-8B"), factor=0.001)
    biased = replace(
        llama, output_bias=True, shape=replace(llama.shape, attention=replace(llama.shape.attention, qkv_bias=True))
    )
    mla = scale(find_model("DeepSeek-V3"), factor=0.001)
    direct = replace(mla, shape=replace(mla.shape, attention=replace(mla.shape.attention, q_lora_rank=None)))
    for spec in (biased, direct):
        model, tokens = random_model(spec, 2), list(range(7))
        assert torch.allclose(_logits(model, tokens), textbook.logits(spec, model.source, tokens), atol=1e-4)


# Runner


def test_fences_are_called_once_a_layer_before_the_layer_is_touched():
    """Layer i of a cached prefix arrives only in `before_layer(i)`; whatever is read earlier would be NaN."""
    runner, pages, tokens = runner_of("gqa", 8, 4), np.arange(8), prompt(model_of("gqa"), 20)
    plain = runner.forward([Row(tokens[:16], 0, pages)]) is not None and runner.forward([Row(tokens[16:], 16, pages)])
    held = runner.pool.whole.clone()
    runner.pool.poison(range(8))
    calls = []

    def arrive(layer):
        calls.append(("before", layer))
        runner.pool.whole[:, layer, :4] = held[:, layer, :4]

    late = runner.forward([Row(tokens[16:], 16, pages)], arrive, lambda layer: calls.append(("after", layer)))
    assert torch.equal(late, plain)
    layers = range(model_of("gqa").spec.shape.layers)
    assert calls == [call for layer in layers for call in (("before", layer), ("after", layer))]


def test_a_page_that_never_arrived_shows():
    runner, tokens = runner_of("mla experts", 8, 4), prompt(model_of("mla experts"), 20)
    assert runner.forward([Row(tokens[16:], 16, np.arange(8))]).isnan().all()


def test_rows_must_fit_their_pages():
    runner = runner_of("gqa", 8, 4)
    with pytest.raises(RowError, match="row 1 ends at token 9, its 2 pages of 4 do not"):
        runner.forward([Row([1], 0, [0]), Row([1] * 9, 0, [1, 2])])
    with pytest.raises(RowError, match="pool of 8"):
        runner.forward([Row([1], 0, [8])])
    with pytest.raises(RowError, match="at least one"):
        runner.forward([Row([], 3, [0])])


def test_bfloat16_models_run():
    model = random_model(model_of("gqa").spec, 1, dtype=torch.bfloat16)
    runner, exact = runner_for(model, "bfloat16", 4, 16), _logits(model_of("gqa"), list(range(30)))
    assert torch.allclose(runner.forward([Row(range(30), 0, range(4))]).double()[0], exact[-1], atol=0.3)


# Weights


def test_seeds_make_weights_and_names_make_them_independent():
    one, two = Seeded(3), Seeded(3)
    two.get("model.norm.weight", (4,))
    assert torch.equal(one.get("lm_head.weight", (8, 4)), two.get("lm_head.weight", (8, 4)))
    assert not torch.equal(one.get("lm_head.weight", (8, 4)), Seeded(4).get("lm_head.weight", (8, 4)))


class Counting(Seeded):
    def __init__(self):
        super().__init__(0)
        self.given = {}

    def get(self, name, shape):
        self.given[name] = super().get(name, shape)
        return self.given[name]


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen3-235B-A22B", "GLM-4.5", "DeepSeek-V3"])
def test_the_decoder_has_the_parameters_its_shape_counts(name):
    from hicache_ref.model.decoder import build

    spec, source = scale(find_model(name), factor=0.001), Counting()
    build(spec, source)
    assert sum(tensor.numel() for tensor in source.given.values()) == spec.shape.parameters


_CONFIGS = {
    "llama": {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64},
    "deepseek_v3": {
        "model_type": "deepseek_v3", "num_attention_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 16, "q_lora_rank": 24, "intermediate_size": 64, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "topk_method": "noaux_tc", "n_group": 2, "topk_group": 1, "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5, "norm_topk_prob": True,
    },
}  # fmt: skip


def _folder(path, family, extra=None, **changes):
    """A folder as Hugging Face has them, with the weights of seed 9."""
    save_file = pytest.importorskip("safetensors.torch").save_file

    from hicache_ref.model.decoder import build

    config = _CONFIGS[family] | {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "torch_dtype": "float32"}
    (path / "config.json").write_text(json.dumps(config | changes))
    source = Counting()
    source.seed = 9
    model = build(spec_from_folder(path), source)
    tensors = source.given | (extra or {})
    first = {name: t for name, t in tensors.items() if "layers.0" in name}
    save_file(first, path / "a.safetensors")
    save_file({name: t for name, t in tensors.items() if name not in first}, path / "b.safetensors")
    files = {name: "a.safetensors" if name in first else "b.safetensors" for name in tensors}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return model


@pytest.mark.parametrize("family", _CONFIGS)
def test_a_folder_gives_the_model_that_was_saved(tmp_path, family):
    saved = _folder(tmp_path, family, {"model.layers.2.eh_proj.weight": torch.zeros(2)})
    loaded = load_model(tmp_path)
    assert torch.equal(_logits(loaded, [1, 2, 3]), _logits(saved, [1, 2, 3]))
    assert loaded.spec == saved.spec


def test_packed_weights_are_unpacked_by_their_scales(tmp_path):
    name = "model.layers.1.mlp.down_proj.weight"
    whole = _folder(tmp_path, "llama")
    packed = whole.source.given[name].to(torch.float8_e4m3fn)
    scales = torch.tensor([[0.5]])
    _folder(tmp_path, "llama", {name: packed, f"{name}_scale_inv": scales})
    down = load_model(tmp_path).layers[1].feed_forward.mlp.down
    assert torch.equal(down, packed.float() * 0.5)


def test_folders_that_do_not_fit_say_why(tmp_path):
    _folder(tmp_path, "llama", {"model.layers.0.mlp.down_proj.bias": torch.zeros(64)})
    with pytest.raises(ModelError, match=r"1 tensors this decoder does not use: model.layers.0.mlp.down_proj.bias"):
        load_model(tmp_path)
    _folder(tmp_path, "llama", {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(ModelError, match=r"model.norm.weight is \[3\], its config.json says \[64\]"):
        load_model(tmp_path)
    _folder(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"has no tensor model\.layers\.2\."):
        load_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor its index"):
        load_model(tmp_path)


def test_unknown_families_name_the_known(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            _CONFIGS["llama"] | {"model_type": "mamba9", "hidden_size": 8, "vocab_size": 8, "num_hidden_layers": 1}
        )
    )
    with pytest.raises(ModelError, match="no decoder for model type 'mamba9'; known: llama, qwen2"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="known: llama"):
        spec_of(find_model("Gemma-3-27B"))


# Positions


def test_stretched_positions():
    """Llama 3 keeps short waves and stretches long ones; YaRN does, and raises the scores' scale as DeepSeek has it."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}  # fmt: skip
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    at = torch.tensor([1])
    for scaling, factor in ((llama3, 8.0), (yarn, 40.0), ({"rope_type": "linear", "factor": 4.0}, 4.0)):
        plain, stretched = (
            Rotary(Positions(500000.0, scaling=s), 64, torch.float64, torch.device("cpu")) for s in ({}, scaling)
        )
        angles = [torch.atan2(*each.rows(at, 1)[0].flip(0)) for each in (plain, stretched)]
        ratio = angles[0] / angles[1]
        assert ratio[-1] == pytest.approx(factor)
        assert ratio[0] == pytest.approx(4.0 if "linear" in scaling.values() else 1.0)
        assert (ratio.diff() >= -1e-9).all()
    # 0.1 ln(40) + 1, squared: `mscale` of DeepSeek-V3's modelling file.
    assert Rotary(Positions(scaling=yarn), 64, torch.float64, torch.device("cpu")).score_factor == pytest.approx(
        1.8738, abs=1e-4
    )
    with pytest.raises(ModelError, match="unknown rope_type 'odd'; known: default, linear"):
        Rotary(Positions(scaling={"rope_type": "odd"}), 64, torch.float32, torch.device("cpu"))


def test_tables_grow_by_blocks():
    rotary = Rotary(Positions(), 8, torch.float64, torch.device("cpu"))
    rotary.rows(torch.tensor([3]), 3)
    (far,) = rotary.rows(torch.tensor([9000]), 9000)
    assert far[0].tolist() == pytest.approx([np.cos(9000 * 10000.0 ** (-pair / 4)) for pair in range(4)])


def test_every_family_has_a_model_or_a_config_that_reads_it():
    names = {find_model(name).family for name in ("Llama-3.1-8B", "Qwen2.5-7B", "Qwen3-8B", "GLM-4.6", "Kimi-K2")}
    assert names < set(FAMILIES)


def test_shapes_split_into_dense_and_experts():
    shape = scale(find_model("DeepSeek-V3"), factor=0.01).shape
    assert [type(ffn) for _, ffn in shape.blocks] == [Dense, Moe]
