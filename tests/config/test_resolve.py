"""Every rewrite, warning and refusal of the article's chapters 5 and 6, and of 0.5.23's hook: one case each.

An id begins with the section of the article, or with the number in the checklist of 0.5.23's semantics, or with the
upstream file that has the rule.
"""

from __future__ import annotations

from typing import Any

import pytest

from hicache_ref.config.models import find_model
from hicache_ref.config.resolve import ConfigError, DeviceFacts, ModelFacts, StorageConfig, resolve
from hicache_ref.config.server_args import FLAG_OF, ServerArgs
from hicache_ref.control.rules import rules_for
from tests.config.facts import ASCEND, B200, GIB, H200, L2, L3, MHA, MLA, NSA, SLIDING, Model, rewrites, run, warnings

OLD, ARTICLE, NEW = "v0.5.7", "article", "v0.5.23"
MOONCAKE: dict[str, Any] = {**L2, "hicache_storage_backend": "mooncake"}
LAYER_FIRST: dict[str, Any] = {"hicache_mem_layout": "layer_first"}
FLASHINFER: dict[str, Any] = {"decode_attention_backend": "flashinfer"}  # keeps the FA3 rows out of the way


def case(id: str, profile: str, model: Model, device: DeviceFacts | None, flags: dict[str, Any], **after: Any) -> Any:
    return pytest.param(profile, model, device, flags, after, id=f"{id} {profile}")


REWRITES = [
    # article 5.3 and 5.6: layouts and copies
    case("§5.6 mooncake layer_first direct", OLD, MHA, None, {**MOONCAKE, "hicache_io_backend": "direct"},
         hicache_mem_layout="page_first_direct"),
    case("§5.6 mooncake layer_first kernel", OLD, MHA, None, {**MOONCAKE, **FLASHINFER},
         hicache_mem_layout="page_first"),
    case("§5.6 mooncake layer_first kernel", ARTICLE, MHA, None, {**MOONCAKE, **FLASHINFER},
         hicache_mem_layout="page_first"),
    case("§5.3 page_first_direct kernel", OLD, MHA, None, {**L2, "hicache_mem_layout": "page_first_direct"},
         hicache_io_backend="direct"),
    case("§5.3 page_first direct", OLD, MHA, None,
         {**L2, "hicache_mem_layout": "page_first", "hicache_io_backend": "direct"},
         hicache_mem_layout="page_first_direct"),
    # article 5.6: FlashAttention 3
    case("§5.6 decode unset MHA", OLD, MHA, None, L2, decode_attention_backend="flashinfer"),
    case("§5.6 decode unset MHA without flashinfer", OLD, MHA, DeviceFacts(has_flashinfer=False), L2,
         decode_attention_backend="triton"),
    case("§5.6 decode unset MLA", OLD, MLA, None, L2, decode_attention_backend="triton"),
    case("§5.6 decode unset MLA sm100", OLD, MLA, DeviceFacts(is_sm100=True), {**L2, "attention_backend": "flashinfer"},
         decode_attention_backend="flashinfer"),
    case("§5.6 decode fa3", OLD, MHA, None, {**L2, "decode_attention_backend": "fa3"}, hicache_io_backend="direct"),
    case("§5.6 decode fa3 page_first", OLD, MHA, None,
         {**L2, "decode_attention_backend": "fa3", "hicache_mem_layout": "page_first"},
         hicache_io_backend="direct", hicache_mem_layout="page_first_direct"),
    # article 5.6: NPU
    case("§5.6 NPU MHA", OLD, MHA, ASCEND, {"enable_hierarchical_cache": True},
         hicache_io_backend="kernel_ascend", hicache_mem_layout="page_first_direct", attention_backend="ascend",
         prefill_attention_backend="ascend", decode_attention_backend="ascend"),
    case("§5.6 NPU MLA", NEW, MLA, ASCEND, {"enable_hierarchical_cache": True},
         hicache_io_backend="kernel_ascend", hicache_mem_layout="page_first_kv_split", attention_backend="ascend",
         prefill_attention_backend="ascend", decode_attention_backend="ascend"),
    # article 6
    case("§6 NSA", OLD, NSA, H200, {"page_size": 1}, page_size=64, kv_cache_dtype="bfloat16"),
    case("§6 NSA sm100", NEW, NSA, B200, {"page_size": 64}, kv_cache_dtype="fp8_e4m3"),
    case("§6 NSA groups", OLD, NSA, None, {"page_size": 64, "kv_cache_dtype": "bf16", "tp_size": 8, "dp_size": 8,
         "max_total_tokens": 6400}, kv_cache_dtype="bfloat16", enable_dp_attention=True),
    # 0.5.23's hook
    case("(59) page_first_direct kernel", NEW, MHA, None, {**L2, "hicache_mem_layout": "page_first_direct"},
         hicache_io_backend="direct"),
    case("(60) page_first direct", NEW, MHA, None, {**L2, "hicache_io_backend": "direct"},
         hicache_mem_layout="page_first_direct"),
    case("(61) mooncake layer_first kernel", NEW, MHA, None, {**MOONCAKE, **LAYER_FIRST},
         hicache_mem_layout="page_first"),
    case("(61) npu_memcache layer_first direct", NEW, MHA, None,
         {**L2, **LAYER_FIRST, "hicache_storage_backend": "npu_memcache", "hicache_io_backend": "direct"},
         hicache_mem_layout="page_first_direct"),
    case("(62) unified memory direct", NEW, MHA, None,
         {**L2, "enable_unified_memory": True, "hicache_mem_layout": "page_first_direct",
          "hicache_io_backend": "direct"},
         hicache_mem_layout="page_first", hicache_io_backend="kernel"),
    # pages that attention kernels force
    case("server_args.py flashmla", OLD, MLA, None, {"attention_backend": "flashmla", "max_total_tokens": 6400},
         page_size=64),
    case("server_args.py cutlass_mla", OLD, MLA, None,
         {"decode_attention_backend": "cutlass_mla", "page_size": 64, "max_total_tokens": 6400}, page_size=128),
    case("server_args.py trtllm_mha, default of sm100", OLD, MHA, B200, {}, page_size=64),
    case("server_args.py trtllm_mla, default of sm100", OLD, MLA, B200, {"enable_hierarchical_cache": True},
         page_size=64, decode_attention_backend="flashinfer"),
    case("server_args.py fa4 prefill", OLD, MHA, None,
         {"prefill_attention_backend": "fa4", "max_total_tokens": 6400}, page_size=128),
    case("server_args.py trtllm_mha", OLD, MHA, B200, {"attention_backend": "trtllm_mha", "page_size": 128},
         page_size=64),
    case("overrides.py hpc_ops", NEW, MHA, None, {"attention_backend": "hpc_ops", "max_total_tokens": 6400},
         page_size=64),
    # the tree, the scheduler, speculation
    case("server_args.py dual chunk", OLD, MHA, None,
         {"attention_backend": "dual_chunk_flash_attn", "enable_mixed_chunk": True, "max_total_tokens": 64},
         disable_radix_cache=True, enable_mixed_chunk=False),
    case("schedule_policy.py lpm", NEW, MHA, None,
         {"disable_radix_cache": True, "schedule_policy": "lpm", "max_total_tokens": 64}, schedule_policy="fcfs"),
    case("server_args.py one group", OLD, MHA, None, {"enable_dp_attention": True, "max_total_tokens": 64},
         enable_dp_attention=False),
    case("parallel_hook.py groups", NEW, MHA, None,
         {"enable_dp_attention": True, "tp_size": 8, "dp_size": 4, "max_total_tokens": 64},
         enable_dp_attention=False, attn_dp_size=4, dp_size=1),
    case("server_args.py NEXTN", OLD, MLA, None,
         {"speculative_algorithm": "NEXTN", "enable_mixed_chunk": True, "max_total_tokens": 640},
         speculative_algorithm="EAGLE", max_running_requests=48, enable_mixed_chunk=False),
    case("speculative_hook.py NGRAM", NEW, MHA, None,
         {"speculative_algorithm": "NGRAM", "enable_mixed_chunk": True, "max_total_tokens": 640},
         max_running_requests=48, enable_mixed_chunk=False),
    case("server_args.py line of drafts", OLD, MHA, None,
         {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
          "speculative_num_draft_tokens": 8, "max_running_requests": 8, "max_total_tokens": 640},
         speculative_num_draft_tokens=4),
    # sizes
    case("§4.2 whole pages", OLD, MHA, None,
         {"page_size": 64, "max_total_tokens": 6500, "enable_hierarchical_cache": True, "hicache_total_tokens": 9000,
          **FLASHINFER},
         max_total_tokens=6464, hicache_total_tokens=8960),
    case("model_runner_kv_cache_mixin.py L1 beyond the GPU", OLD, MHA, DeviceFacts(gpu_mem_bytes=2 * 10**9),
         {"max_total_tokens": 10**9, "mem_fraction_static": 0.75}, max_total_tokens=500_000),
    case("hicache_auto_size.py", NEW, MHA, DeviceFacts(host_available_bytes=10 * GIB + 100_000_000), L2,
         hicache_ratio=80_000_000 * 0.95 / 64_000_000),
    case("hicache_hook.py a given ratio stands", NEW, MHA, None,
         {**L2, "hicache_ratio": 3.0, "hicache_host_memory_fraction": 0.5}, hicache_host_memory_fraction=None),
    # flags the version does not have
    case("server_args.py no such flag", OLD, MHA, None, {"attn_dp_size": 2, "max_total_tokens": 64},
         attn_dp_size=None),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "model", "device", "flags", "after"), REWRITES)
def test_rewrite(profile: str, model: Model, device: DeviceFacts | None, flags: dict[str, Any], after: Any) -> None:
    """Exactly these flags change, and each change says from what to what."""
    resolved = run(profile, model, device, **flags)
    given = ServerArgs(**flags)
    assert {FLAG_OF[name].name: value for name, value in after.items()} == {
        flag: new for flag, (_, new) in rewrites(resolved).items()
    }
    for name, value in after.items():
        assert getattr(resolved.args, name) == value
        before = rewrites(resolved)[FLAG_OF[name].name][0]
        assert before == getattr(given, name) or getattr(given, name) is None
    again = resolve(resolved.args, profile, model=model, device=device)
    assert again.args == resolved.args
    assert rewrites(again) == {}


def refused(id: str, profile: str, model: Model, device: DeviceFacts | None, flags: dict[str, Any], says: str) -> Any:
    return pytest.param(profile, model, device, flags, says, id=f"{id} {profile}")


def extra(text: str) -> dict[str, Any]:
    return {**L3, "hicache_storage_backend_extra_config": text}


TREE_OF_DRAFTS: dict[str, Any] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 8,
    "page_size": 16,
    "max_total_tokens": 640,
}

REFUSALS = [
    refused("§5.6 L2 without tree", OLD, MHA, None, {**L2, "disable_radix_cache": True}, "exclude each other"),
    refused("(64) L2 without tree", NEW, MHA, None, {**L2, "disable_radix_cache": True}, "exclude each other"),
    refused("§5.3 page_head MLA", OLD, MLA, None, {**L2, "hicache_mem_layout": "page_head"}, "of an MLA cache"),
    refused("§5.3 page_head MLA", NEW, MLA, None, {**L2, "hicache_mem_layout": "page_head"}, "of an MLA cache"),
    refused("§5.4 page_head direct", OLD, MHA, None,
            {**L2, "hicache_mem_layout": "page_head", "hicache_io_backend": "direct"}, "no such copy"),
    refused("§5.4 kernel_ascend layer_first", OLD, MHA, None, {**L2, "hicache_io_backend": "kernel_ascend"},
            "take page_first_direct"),
    refused("§5.4 kernel_ascend page_first_direct MLA", NEW, MLA, None,
            {**L2, "hicache_io_backend": "kernel_ascend", "hicache_mem_layout": "page_first_direct"},
            "take page_first_kv_split"),
    refused("§5.9 sliding window", OLD, SLIDING, None, L2, "MHA and MLA caches only"),
    refused("§5.9 sliding window", NEW, SLIDING, None, L2, "not modelled here"),
    refused("§5.9 sliding window without L2", OLD, SLIDING, None, {"max_total_tokens": 64}, "not modelled here"),
    refused("§6 L2 below L1", OLD, MHA, None, {**L2, "hicache_ratio": 0.5}, "L2 must exceed L1"),
    refused("§6 L2 below L1 by size", ARTICLE, MHA, None, {**L2, "max_total_tokens": 10**7, "hicache_size": 1},
            "--hicache-size: L2 must exceed L1"),
    refused("§6 host memory", OLD, MHA, DeviceFacts(host_available_bytes=10 * GIB + 10**8), L2,
            "takes 0.13 GB, and the host has 0.10 GB"),
    refused("§6 host memory of all ranks", NEW, MHA, DeviceFacts(host_available_bytes=10 * GIB + 5 * 10**8),
            {**L2, "tp_size": 4, "hicache_ratio": 2.0}, "the host has 0.12 GB"),
    refused("hicache_auto_size.py no host memory", NEW, MHA, DeviceFacts(host_available_bytes=GIB), L2,
            "no memory left"),
    refused("§6 store without L2", OLD, MHA, None, {"hicache_storage_backend": "file", "max_total_tokens": 64},
            "dies at its first request"),
    refused("§5.6 mooncake kv_split", OLD, MLA, ASCEND,
            {"enable_hierarchical_cache": True, "hicache_storage_backend": "mooncake"}, "one piece"),
    refused("§5.3 hf3fs page_head", OLD, MHA, None,
            {**L2, "hicache_storage_backend": "hf3fs", "hicache_mem_layout": "page_head"}, "size of a page"),
    refused("§6 NSA dtype", OLD, NSA, None, {"kv_cache_dtype": "fp8_e5m2", "max_total_tokens": 64}, "fp8_e4m3 only"),
    # extra config: each type apart
    refused("§6 extra config JSON", OLD, MHA, None, extra("{'a': 1}"), "not JSON"),
    refused("§6 extra config list", OLD, MHA, None, extra("[]"), "must be a JSON object, got list"),
    refused("§6 threshold float", OLD, MHA, None, extra('{"prefetch_threshold": 256.0}'), "must be int, got float"),
    refused("§6 threshold str", OLD, MHA, None, extra('{"prefetch_threshold": "256"}'), "must be int, got str"),
    refused("§6 threshold null", NEW, MHA, None, extra('{"prefetch_threshold": null}'), "must be int, got NoneType"),
    refused("§6 base str", OLD, MHA, None, extra('{"prefetch_timeout_base": "1"}'), "must be number, got str"),
    refused("§6 per ki list", OLD, MHA, None, extra('{"prefetch_timeout_per_ki_token": []}'),
            "must be number, got list"),
    refused("§6 prefix keys int", NEW, MHA, None, extra('{"hicache_storage_pass_prefix_keys": 1}'),
            "must be bool, got int"),
    refused("§6 extra config without store", OLD, MHA, None,
            {**L2, "hicache_storage_backend_extra_config": '{"prefetch_threshold": "256"}'}, "must be int"),
    refused("§6 extra config file", NEW, MHA, None, extra("@store.toml"), "files are not read here"),
    refused("backend_factory.py dynamic", OLD, MHA, None,
            {**L2, "hicache_storage_backend": "dynamic",
             "hicache_storage_backend_extra_config": '{"backend_name": "mine"}'},
            "lacks module_path and class_name"),
    refused("kv_cache_hook.py eviction options", NEW, MHA, None,
            {"max_total_tokens": 64, "radix_eviction_policy_config": "[4]"}, "JSON object"),
    # pages and chunks
    refused("check_server_args chunk", OLD, MHA, None,
            {"page_size": 64, "chunked_prefill_size": 100, "max_total_tokens": 640}, "no whole number of pages"),
    refused("check_server_args chunk of a group", NEW, MHA, None,
            {"page_size": 64, "chunked_prefill_size": 128, "max_total_tokens": 640, "tp_size": 4, "attn_dp_size": 4},
            "a chunk of 32 tokens"),
    refused("§4.2 L1 below a page", OLD, MHA, None, {"page_size": 64, "max_total_tokens": 63}, "not one page"),
    refused("§4.2 L2 below a page", OLD, MHA, None, {**L2, "page_size": 64, "hicache_total_tokens": 63},
            "--hicache-total-tokens 63"),
    refused("model_runner L1 unknown", OLD, MHA, None, {}, "derived from GPU memory only"),
    refused("model_runner L1 too small", OLD, MHA, DeviceFacts(gpu_mem_bytes=10**9), {"mem_fraction_static": 0.5},
            "0.50 GB, does not hold the weights, 1.00 GB"),
    # scheduler, groups, stages
    refused("check_server_args priority", OLD, MHA, None,
            {"enable_priority_scheduling": True, "schedule_policy": "lpm", "max_total_tokens": 64}, "fcfs and lof"),
    refused("schedule_policy.py priority", NEW, MHA, None, {"schedule_policy": "priority", "max_total_tokens": 64},
            "scheduler does not know it"),
    refused("tp_worker.py nobody runs", OLD, MHA, None,
            {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "max_running_requests": 4,
             "max_total_tokens": 64}, "not one request"),
    refused("server_args.py groups", OLD, MHA, None,
            {"tp_size": 8, "dp_size": 3, "enable_dp_attention": True, "max_total_tokens": 64}, "whole number of ranks"),
    refused("parallel_hook.py replicas of groups", NEW, MHA, None,
            {"tp_size": 8, "dp_size": 2, "attn_dp_size": 2, "max_total_tokens": 64}, "not supported"),
    refused("check_server_args stages mix", OLD, MHA, None,
            {"pp_size": 2, "enable_mixed_chunk": True, "max_total_tokens": 64}, "stages do not mix"),
    refused("check_server_args stages speculate", OLD, MHA, None,
            {"pp_size": 2, "speculative_algorithm": "NGRAM", "max_total_tokens": 64}, "stages do not speculate"),
    # speculation
    refused("server_args.py triple", OLD, MHA, None,
            {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4, "max_total_tokens": 64}, "all three"),
    refused("server_args.py tree in pages", OLD, MHA, None, {**TREE_OF_DRAFTS, "attention_backend": "triton"},
            "comes out wrong"),
    refused("speculative_hook.py tree in pages", NEW, MLA, None, {**TREE_OF_DRAFTS, "attention_backend": "trtllm_mla",
            "page_size": 32}, "comes out wrong"),
    refused("server_args.py tree on trtllm_mha", OLD, MHA, B200, {**TREE_OF_DRAFTS, "attention_backend": "trtllm_mha"},
            "not a tree"),
    refused("server_args.py STANDALONE in groups", OLD, MHA, None,
            {"speculative_algorithm": "STANDALONE", "tp_size": 2, "dp_size": 2, "enable_dp_attention": True,
             "max_total_tokens": 640}, "attention groups"),
    # attention kernels
    refused("server_args.py trtllm_mla off Blackwell", OLD, MLA, H200, {"attention_backend": "trtllm_mla"},
            "--attention-backend trtllm_mla: these attention kernels run on Blackwell only"),
    refused("server_args.py fa4 decode", OLD, MHA, H200, {"decode_attention_backend": "fa4"}, "prefill only"),
    # out of scope
    refused("(64) buffer_only", NEW, MHA, None,
            {**L3, "hicache_host_memory_mode": "buffer_only"}, "not modelled here"),
    refused("(64) linker with L2", NEW, MHA, None, {**L2, "enable_unified_cache_external_linker": True},
            "exclude each other"),
    refused("(64) linker", NEW, MHA, None, {"enable_unified_cache_external_linker": True}, "not modelled here"),
    refused("(64) DCP MHA", NEW, MHA, None, {**L2, "dcp_size": 2}, "cannot find its pages"),
    refused("(64) DCP MLA", NEW, MLA, None, {**L2, "dcp_size": 2}, "not modelled here"),
    refused("(64) fraction", NEW, MHA, None, {**L2, "hicache_host_memory_fraction": 1.5}, "at most 1"),
    refused("(64) fraction of nothing", NEW, MHA, None, {**L2, "hicache_host_memory_fraction": 0.0}, "above 0"),
    refused("(64) offload without store", NEW, MHA, None,
            {"disaggregation_mode": "decode", "disaggregation_decode_enable_offload_kvcache": True}, "no store"),
    refused("§5.6 offload of a prefill server", OLD, MHA, None,
            {"disaggregation_mode": "prefill", "disaggregation_decode_enable_offload_kvcache": True}, "only a decode"),
    refused("server_args.py decode server", OLD, MHA, None, {"disaggregation_mode": "decode"}, "prefill server"),
    refused("(62) unified memory on an NPU", NEW, MHA, ASCEND,
            {"enable_hierarchical_cache": True, "enable_unified_memory": True}, "an NPU has none"),
    # values
    refused("server_args.py choice", OLD, MHA, None, {"hicache_write_policy": "write_thru"},
            "did you mean write_through"),
    refused("server_args.py later choice", OLD, MHA, None, {**L2, "hicache_storage_backend": "shm"},
            "take profile v0.5.23"),
    refused("server_args.py bound", OLD, MHA, None, {"page_size": 0}, "at least 1"),
    refused("server_args.py infinity", OLD, MHA, None, {"hicache_ratio": float("inf")}, "finite"),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "model", "device", "flags", "says"), REFUSALS)
def test_refusal(profile: str, model: Model, device: DeviceFacts | None, flags: dict[str, Any], says: str) -> None:
    """One line that says what is wrong, why, what to do, and where the rule stands."""
    with pytest.raises(ConfigError) as caught:
        run(profile, model, device, **flags)
    text = str(caught.value)
    assert says in text
    assert "\n" not in text
    what, _, rest = text.partition(": ")
    assert what
    assert ";" in rest
    assert rest.endswith("]")


def warned(id: str, profile: str, model: Model, device: DeviceFacts | None, flags: Any, flag: str, says: str) -> Any:
    return pytest.param(profile, model, device, flags, flag, says, id=f"{id} {profile}")


WARNINGS = [
    warned("§5.9 NSA", OLD, NSA, None, L2, "--enable-hierarchical-cache", "indexer"),
    warned("§5.9 FP4", ARTICLE, MHA, None, {**L2, "kv_cache_dtype": "fp4_e2m1"}, "--kv-cache-dtype", "not checked"),
    warned("§6 size over ratio", OLD, MHA, None, {**L2, "hicache_ratio": 4.0, "hicache_size": 1}, "--hicache-ratio",
           "--hicache-size goes before it"),
    warned("§6 tokens over size", OLD, MHA, None, {**L2, "hicache_total_tokens": 10**5, "hicache_size": 1},
           "--hicache-size", "--hicache-total-tokens goes before it"),
    warned("§6 exact L2 below L1", OLD, MHA, None, {**L2, "hicache_total_tokens": 100}, "--hicache-total-tokens",
           "L2 has 100 tokens, L1 64000"),
    warned("memory_pool_host L2 below L1", NEW, MHA, None, {**L2, "hicache_ratio": 0.5}, "--hicache-ratio",
           "L2 has 32001 tokens"),
    warned("§6 host memory of all ranks", OLD, MHA, DeviceFacts(host_available_bytes=10 * GIB + 2 * 10**8),
           {**L2, "tp_size": 4}, "--hicache-ratio", "as if it were alone"),
    warned("§6 ratio 1.2", OLD, MHA, None, {**L3, "hicache_ratio": 1.2}, "--hicache-ratio", "often passed over"),
    warned("§6 no room to prefetch", OLD, MHA, None, {**L3, "hicache_total_tokens": 1000}, "--hicache-total-tokens",
           "nothing is ever fetched"),
    warned("cache_controller.py write_back and L3", OLD, MHA, None, {**L3, "hicache_write_policy": "write_back"},
           "--hicache-write-policy", "writes nothing to L3"),
    warned("§6 threshold below a page", OLD, MHA, None,
           {**extra('{"prefetch_threshold": 32}'), "page_size": 64}, "prefetch_threshold", "never fetched"),
    warned("§6 L2 is off", OLD, MHA, None, {"max_total_tokens": 64, "hicache_write_policy": "write_back"},
           "--hicache-write-policy", "does nothing without --enable-hierarchical-cache"),
    warned("§6 store without L2", NEW, MHA, None, {"max_total_tokens": 64, "hicache_storage_backend": "file"},
           "--hicache-storage-backend", "does nothing without --enable-hierarchical-cache"),
    warned("§6 L3 is off", NEW, MHA, None, {**L2, "hicache_storage_prefetch_policy": "best_effort"},
           "--hicache-storage-prefetch-policy", "does nothing without --hicache-storage-backend"),
    warned("§3.1 strategy beyond the command line", OLD, MHA, None,
           {"max_total_tokens": 64, "radix_eviction_policy": "slru"}, "--radix-eviction-policy", "lru, lfu only"),
    warned("our stores", NEW, MHA, None, {**L2, "hicache_storage_backend": "lmdb"}, "--hicache-storage-backend",
           "dynamic"),
    warned("server_args.py groups", OLD, MHA, None,
           {"tp_size": 4, "dp_size": 2, "enable_dp_attention": True, "max_total_tokens": 64,
            "chunked_prefill_size": 8192}, "--chunked-prefill-size", "share the chunk"),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "model", "device", "flags", "flag", "says"), WARNINGS)
def test_warning(
    profile: str, model: Model, device: DeviceFacts | None, flags: dict[str, Any], flag: str, says: str
) -> None:
    resolved = run(profile, model, device, **flags)
    assert says in warnings(resolved)[flag].reason


@pytest.mark.parametrize("profile", [ARTICLE, NEW])
def test_where_write_back_reaches_the_store_nobody_is_warned(profile: str) -> None:
    resolved = run(profile, MHA, None, **L3, hicache_write_policy="write_back")
    assert "--hicache-write-policy" not in warnings(resolved)


def test_a_plain_server_changes_nothing() -> None:
    for profile in (OLD, ARTICLE, NEW):
        assert run(profile, max_total_tokens=64).changes == ()


def test_a_flag_that_ends_as_it_was_given_is_not_rewritten() -> None:
    """Sparse attention wants pages of 64, and these kernels, which come later, of 128."""
    flags: dict[str, Any] = {"decode_attention_backend": "cutlass_mla", "max_total_tokens": 640}
    assert rewrites(run(model=NSA, page_size=128, **flags)).keys() == {"--kv-cache-dtype"}
    assert run(model=NSA, page_size=1, **flags).page_size == 128


# Sizes


def test_l2_by_ratio_always_adds_a_page() -> None:
    """So upstream accepts a ratio of 1, whatever the article says of ratios."""
    resolved = run(**L2, page_size=64, hicache_ratio=1.0)
    assert (resolved.l1_pages, resolved.l2_pages) == (1000, 1001)


def test_l2_by_size_counts_gigabytes_of_ten_to_the_nine() -> None:
    resolved = run(**L2, page_size=64, hicache_size=1)
    assert resolved.l2_pages == 10**9 // 1000 // 64 + 1


def test_an_exact_l2_is_exact_and_may_be_small() -> None:
    resolved = run(**L2, page_size=64, hicache_total_tokens=640)
    assert resolved.l2_tokens == 640
    assert not resolved.rules.l2_must_exceed_l1


def test_l1_is_what_the_weights_leave() -> None:
    """Device bytes count here: L1 also holds what L2 does not carry."""
    device = DeviceFacts(gpu_mem_bytes=10 * 10**9)
    resolved = run(model=NSA, device=device, mem_fraction_static=0.5)
    assert resolved.l1_pages == int(10 * 10**9 * 0.5 - 10**9) // 1200 // 64


def test_stages_share_layers_and_groups_share_heads() -> None:
    resolved = run(**L2, pp_size=3, tp_size=8, dp_size=2, enable_dp_attention=True, page_size=64)
    assert resolved.token_bytes == 334
    assert (resolved.attention_groups, resolved.attention_tp_size) == (2, 4)


def test_groups_share_the_chunk_and_what_admission_sets_aside() -> None:
    resolved = run(max_total_tokens=64, tp_size=4, dp_size=2, enable_dp_attention=True, chunked_prefill_size=8192)
    assert resolved.chunk_tokens == 4096
    assert resolved.args.chunked_prefill_size == 8192
    assert resolved.conservativeness == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("profile", "limit"), [(OLD, int(0.8 * (128_001 - 64_000))), (NEW, int(0.5 * 128_001))], ids=["§3.6", "0.5.23"]
)
def test_prefetch_limit(profile: str, limit: int) -> None:
    assert run(profile, **L3).prefetch_limit_tokens == limit
    assert run(profile, **L2).prefetch_limit_tokens == 0


@pytest.mark.parametrize(("gib", "chunk", "fraction"), [(15, 2048, 0.757), (80, 8192, 0.836), (141, 8192, 0.907)])
def test_guesses_from_the_gpu(gib: int, chunk: int, fraction: float) -> None:
    """Values of v0.5.7's own heuristic for these GPUs."""
    args = run(device=DeviceFacts(gpu_mem_bytes=gib * GIB)).args
    assert (args.chunked_prefill_size, args.mem_fraction_static) == (chunk, fraction)


@pytest.mark.parametrize(
    ("profile", "flags", "running"),
    [
        (OLD, {}, 4096),
        (OLD, {"context_length": 40_960}, 2048),
        (OLD, {"context_length": 10_000}, 3276),
        (OLD, {"max_running_requests": 256}, 256),
        (NEW, {"max_running_requests": 50_000}, 32_000),
    ],
)
def test_running_requests(profile: str, flags: dict[str, Any], running: int) -> None:
    assert run(profile, max_total_tokens=64_000, **flags).max_running_requests == running


# What else comes out


def test_storage_config() -> None:
    config = '{"prefetch_threshold": 512, "prefetch_timeout_base": 2, "hicache_storage_pass_prefix_keys": true, "a": 1}'
    assert run(**extra(config)).storage == StorageConfig("file", 512, 2.0, 0.25, True, {"a": 1})
    assert run(**L3, page_size=512).storage == StorageConfig("file", prefetch_threshold=512)
    assert run(**L2).storage is None


def test_old_prefix_keys_take_anything() -> None:
    """v0.5.7 checks no type here, and a non-empty string is true."""
    storage = run(**extra('{"hicache_storage_pass_prefix_keys": "false"}')).storage
    assert storage is not None
    assert storage.hicache_storage_pass_prefix_keys


def test_a_bool_is_an_int_to_upstream() -> None:
    storage = run(**extra('{"prefetch_threshold": true}')).storage
    assert storage is not None
    assert storage.prefetch_threshold == 1


def test_rules_are_the_profiles_unless_given() -> None:
    assert run(NEW, **L2).rules == rules_for(NEW)
    given = rules_for(OLD, write_back_stores=True)
    assert resolve(ServerArgs(**L2), OLD, model=MHA, rules=given).rules == given


def test_retry_flags_become_knobs() -> None:
    flags: dict[str, Any] = {
        "hicache_storage_prefetch_retry_max_attempts": 3,
        "hicache_storage_prefetch_retry_poll_interval": 2,
    }
    rules = run(NEW, **L3, **flags).rules
    assert (rules.prefetch_retry_attempts, rules.prefetch_retry_passes) == (3, 2)


@pytest.mark.parametrize(("algorithm", "bigrams"), [("EAGLE3", True), ("NEXTN", True), ("NGRAM", False), (None, False)])
def test_bigram_keys(algorithm: str | None, bigrams: bool) -> None:
    """Article §5.7."""
    assert run(max_total_tokens=64, speculative_algorithm=algorithm).bigram_keys is bigrams


def test_eviction_options() -> None:
    resolved = run(NEW, max_total_tokens=64, radix_eviction_policy_config='{"protected_threshold": 4}')
    assert resolved.eviction_options == {"protected_threshold": 4}


def test_unknown_profile() -> None:
    with pytest.raises(ConfigError, match=r"did you mean v0\.5\.7"):
        run("v0.5.8", max_total_tokens=64)


def test_a_shape_is_a_model() -> None:
    model: ModelFacts = find_model("deepseek-ai/DeepSeek-V3")
    resolved = resolve(ServerArgs(enable_hierarchical_cache=True, tp_size=8), OLD, model=model, device=H200)
    assert resolved.token_bytes == (512 + 64) * 2 * 61
