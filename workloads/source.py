"""Reading a trace file as numbered JSON documents: plain or gzip, one a line or one a file, a file or a folder.

Rules of this file
- What a file is, is decided by its first bytes, never by its name.
- One document is in memory at a time. A trace of a million lines costs one line.
- This file knows JSON and bytes; it does not know what the fields mean.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from .errors import TraceError

GZIP = b"\x1f\x8b"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
OTHER_FILES = {
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"PK\x03\x04": "a zip archive",
    b"\xfd7zXZ": "xz data",
    b"BZh": "bzip2 data",
    b"PAR1": "a Parquet file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}

FOLDER_FILES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")

Document = dict[str, Any]

_parse = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Source:
    """A trace on disk: one file, or a folder of files that hold one document each."""

    path: Path

    def documents(self) -> Generator[tuple[str, int, Document], None, None]:
        """Every document with its file and its line (1-based).

        Read it inside `closing(…)`: then an error in a row closes the file at once, and not when its traceback goes.
        TraceError: no such file, empty, not text, cut short, not a JSON object.
        """
        for path in self._files():
            yield from _documents(path)

    def first(self, count: int) -> list[tuple[str, int, Document]]:
        """The first `count` documents with their places, or as many as there are."""
        with closing(self.documents()) as documents:
            return list(islice(documents, count))

    def head(self, count: int) -> list[Document]:
        """The first `count` documents, or as many as there are."""
        return [document for _, _, document in self.first(count)]

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        try:
            files = sorted(path for path in self.path.iterdir() if path.name.endswith(FOLDER_FILES))
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror or error})", str(self.path), "check the path") from error
        if not files:
            raise TraceError("a folder without .json files", str(self.path), "name a trace or a folder of sessions")
        return files


def _documents(path: Path) -> Iterator[tuple[str, int, Document]]:
    name = str(path)
    lines = _lines(path)
    document = None
    for number, line in lines:
        if line.isspace():
            continue
        if number == 1 and line.strip() == b"{":
            # A document printed over many lines (the original kv-cache-tester files): then it is the whole file.
            yield name, 1, _whole(name, [line, *(rest for _, rest in lines)])
            return
        try:
            text = line.decode()
            document, end = _parse(text)
            if end + 1 != len(text):  # no line end right behind it: let the strict parser judge what follows
                document = json.loads(text)
        except (ValueError, RecursionError):
            document = _second_look(line, f"{name}:{number}")
        if type(document) is not dict:
            raise TraceError(f"a row is an object, not {document!r:.40}", f"{name}:{number}", "one JSON object a line")
        yield name, number, document
    if document is None:
        raise TraceError("no rows", name, "copy or download it again")


def _second_look(line: bytes, where: str) -> Any:
    """The rare line that the fast path refused: leading blanks are fine, anything else is an error with a reason."""
    text = line.decode(errors="replace").removeprefix("\ufeff").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what, do = f"not a JSON row ({error})", "a trace has one JSON object a line"
        if text.startswith("["):
            what, do = "a JSON array over many lines", "write one object a line (JSONL)"
        elif not line.endswith(b"\n"):
            what, do = "the last row is cut off: the file is truncated", "copy or download it again"
        raise TraceError(what, where, do) from error


def _whole(name: str, lines: list[bytes]) -> Any:
    try:
        return json.loads(b"".join(lines))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise TraceError(f"not a JSON document ({error})", f"{name}:{line}", "is the file complete?") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a plain or gzip file."""
    number = 0
    try:
        with open(path, "rb") as file, _unpacked(str(path), file) as handle:
            for number, line in enumerate(handle, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        where = f"{path}:{number + 1}"
        raise TraceError(
            f"the gzip data is cut short or damaged ({error})", where, "copy or download it again"
        ) from error
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", str(path), "check the path") from error
    if number == 0:
        raise TraceError("an empty file", str(path), "copy or download it again")


def _unpacked(name: str, file: BinaryIO) -> BinaryIO:
    start = cast(io.BufferedReader, file).peek(64)[:64]
    if start.startswith(GZIP):
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), 1 << 20))
    if start.startswith(LFS_POINTER):
        raise TraceError("a Git LFS pointer, not the trace itself", name, "fetch the data with `git lfs pull`")
    for magic, kind in OTHER_FILES.items():
        if start.startswith(magic):
            raise TraceError(f"{kind}", name, "unpack or convert it to JSONL (plain or gzip) first")
    return file
