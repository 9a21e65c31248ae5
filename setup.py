"""Builds the package; with HICACHE_COMPILE=1 its hot modules are compiled from the same source by mypyc.

Without it, or without a C compiler, the package is pure Python and does the same, slower. Compiling needs mypy where
the build runs: `pip install mypy && HICACHE_COMPILE=1 pip install --no-build-isolation .`
"""

import os
from glob import glob

from setuptools import setup

UNCOMPILED = ("__init__.py", "errors.py", "invariants.py", "policies.py")
"""What users subclass, and what is never hot."""
DIRECT_CALLS = "-fno-semantic-interposition"
"""Nobody replaces a function of ours by one of the same name, so that compilers may call it directly, or inline it."""
HOT = [path for path in sorted(glob("hicache_ref/control/*.py")) if not path.endswith(UNCOMPILED)]
HOT += [f"hicache_ref/drive/{name}.py" for name in ("arrivals", "loop")]
HOT += [f"hicache_ref/account/{name}.py" for name in ("metrics", "misses")]
HOT += ["hicache_ref/build.py"]
HOT += [
    f"hicache_sim/{name}.py" for name in ("agenda", "compute", "faults", "links", "plane", "run", "stores", "untimed")
]
HOT += [f"workloads/{name}.py" for name in ("prefix", "request")]


def extensions() -> list:
    if os.environ.get("HICACHE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    made = mypycify(HOT, opt_level="3")
    for extension in made:
        extension.extra_compile_args.append(DIRECT_CALLS)
    return made


setup(ext_modules=extensions())
