"""A calibration file of a machine that nobody has: a small model, round numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PRICE = {"launch_s": 1e-4, "segment_s": 1e-6, "byte_s": 1e-9, "error": {"median": 0.0, "worst": 0.0}}


def content(**changes: Any) -> dict[str, Any]:
    """Llama shrunk to 100,000 parameters; links of 2 GB/s, half of which a copy reaches."""
    found: dict[str, Any] = {
        "format": "hicache calibration 1",
        "about": {"machine": "nowhere", "date": "once", "command": "hicache calibrate --out x.json"},
        "model": {
            "model_path": "llama-3.1-8b",
            "model_scale": 100_000.0,
            "kv_bytes_per_token": 512,
            "kv_cache_dtype": "auto",
            "tp_size": 1,
            "device": "cpu",
            "dtype": "float32",
        },
        "device": {
            "gpu_mem_bytes": None,
            "host_available_bytes": 1 << 34,
            "host_reserve_bytes": 0,
            "is_sm100": False,
            "has_flashinfer": False,
            "l1_bytes": 1 << 20,
        },
        "hardware": {
            "base": "dev-vm",
            "h2d_bytes_per_s": {"value": 2e9, "source": "measured: somehow"},
            "d2h_bytes_per_s": {"value": 2e9, "source": "measured: somehow"},
        },
        "copies": {"kernel/layer_first": {"load": PRICE, "backup": PRICE | {"byte_s": 0.0}}},
        "compute": {
            "layers": 2,
            "prefill": {"a": 1e-3, "b": 1e-5, "c": 1e-8, "d": 1e-7, "e": 1e-4},
            "decode": {"a": 1e-3, "b": 1e-4, "c": 1e-7},
            "batch_overhead_s": {"value": 5e-4, "source": "measured: somehow"},
            "arrival_s": {"value": 1e-4, "source": "measured: somehow"},
            "start_s": {"value": 3e-4, "source": "measured: somehow"},
            "wake": {"most_s": 2e-3, "half_s": 0.05, "source": "measured: somehow"},
            "copy_share": {"value": 0.25, "source": "measured: somehow"},
        },
        "stores": {
            "file": {
                "base": "file-local",
                "read_bytes_per_s": {"value": 3e9, "source": "measured: somehow"},
                "compute_share": {"value": 0.5, "source": "measured: somehow"},
            }
        },
    }
    return found | changes


def write(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(content(**changes)))
    return str(path)
