"""SGLang's own file store and host pages, out of its wheel, as judges of ours.

Rules of this file
- The wheel is a test input: fetched once into `.cache/wheels`, read where it lies, never installed.
- Importing SGLang needs a hundred packages. So single modules are executed with small stand-ins for what they import,
  and single functions are cut out of files too heavy to execute.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
FETCH_S = 30.0
"""Longer than this nobody waits for a wheel; the tests are skipped."""

_PIP = (
    "-m pip download --quiet --retries 1 --timeout 5 --no-deps --only-binary :all: "
    "--python-version 3.11 --platform manylinux_2_34_x86_64"
)


def wheel(version: str) -> Path:
    """The wheel of this version. Skips the test if it cannot be had."""
    path = find(version)
    if path is None:
        pytest.skip(f"the wheel of sglang {version} cannot be had here")
    return path


@cache
def find(version: str) -> Path | None:
    """The wheel of this version, fetched if it must be; None if it cannot be had."""
    pattern = f"sglang-{version}-*.whl"
    for path in CACHE.glob(pattern):
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, *_PIP.split(), "--dest", folder, f"sglang=={version}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=FETCH_S)
        except (OSError, subprocess.SubprocessError):
            return None
        fetched = next(Path(folder).glob(pattern))
        return fetched.replace(CACHE / fetched.name)


class Upstream:
    """One version's file store. `modules`: what must be in `sys.modules` while its code runs."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._zip = ZipFile(wheel(version))
        self.modules: dict[str, ModuleType] = {}
        self._stand_in("sglang.srt.mem_cache.memory_pool_host", HostKVCache=object)
        if version != "0.5.7":
            sizes = self._function("utils/common.py", "human_readable_int")
            self._stand_in("sglang.srt.utils.common", human_readable_int=sizes)
            self._execute("sglang.srt.environ")
            self._execute("sglang.srt.mem_cache.storage.file.lru_file_evictor")
        self.storage: Any = self._execute("sglang.srt.mem_cache.hicache_storage")

    def file_store(self, environ: dict[str, str], **config: Any) -> Any:
        """A `HiCacheFile` with this configuration."""
        defaults = {"tp_rank": 0, "tp_size": 1, "is_mla_model": False, "is_page_first_layout": False, "model_name": "m"}
        newer = {"pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "enable_storage_metrics": False}
        known = self.storage.HiCacheStorageConfig.__dataclass_fields__
        chosen = {key: value for key, value in (defaults | newer | config).items() if key in known}
        with patch.dict(sys.modules, self.modules), patch.dict("os.environ", environ):
            return self.storage.HiCacheFile(self.storage.HiCacheStorageConfig(**chosen))

    def _source(self, path: str) -> str:
        return self._zip.read(f"sglang/srt/{path}").decode()

    def _stand_in(self, name: str, **members: Any) -> ModuleType:
        module = self.modules[name] = ModuleType(name)
        vars(module).update(members)
        return module

    def _execute(self, name: str) -> ModuleType:
        path = name.removeprefix("sglang.srt.").replace(".", "/") + ".py"
        module = self._stand_in(name)
        with patch.dict(sys.modules, self.modules):
            exec(compile(self._source(path), path, "exec"), vars(module))
        return module

    def _function(self, path: str, name: str, owner: str | None = None) -> Any:
        """One function of a file, of class `owner` if given."""
        import argparse
        import re
        from decimal import Decimal

        import torch

        body: list[ast.stmt] = ast.parse(self._source(path)).body
        if owner is not None:
            body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == owner)
        found = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
        scope = {"argparse": argparse, "re": re, "Decimal": Decimal, "torch": torch}
        exec(compile(ast.Module([found], []), path, "exec"), scope)
        return scope[name]


class UpstreamPool:
    """0.5.7's host pool over a buffer of ours: what its generic path takes a page from, and puts one into."""

    def __init__(self, upstream: Upstream, owner: str, **facts: Any) -> None:
        self._facts = SimpleNamespace(**facts)
        self._get, self._set = (
            upstream._function("mem_cache/memory_pool_host.py", name, owner)
            for name in ("get_data_page", "set_from_flat_data_page")
        )

    def get_data_page(self, token: int) -> Any:
        return self._get(self._facts, token)

    def set_from_flat_data_page(self, token: int, page: Any) -> None:
        self._set(self._facts, token, page)
