"""The disk cache: entries are whole or missing, despite concurrent, killed and faulty writers."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from turbine import config
from turbine.compiler import cache, host, pipeline, session, strategies
from turbine.compiler.cache import Entry
from turbine.target import Target, parse

ENTRY = Entry(b"code" * 100, {"strategy": "plain", "seconds": 0.5})
MIB = 2**20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(cache, "_warned", set())
    with config.override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"


def _key(name: str) -> str:
    return cache.key_of([name])


def _path(name: str) -> Path:
    [path] = config.current().cache_dir.glob(f"*/{_key(name)}*")
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_entries_round_trip() -> None:
    cache.write(_key("a"), ENTRY)
    assert cache.read(_key("a")) == ENTRY


def test_an_unknown_key_is_missing() -> None:
    assert cache.read(_key("a")) is None


def test_writing_again_replaces_an_entry() -> None:
    cache.write(_key("a"), ENTRY)
    cache.write(_key("a"), Entry(b"new", {}))
    assert cache.read(_key("a")) == Entry(b"new", {})


def test_parts_of_a_key_are_delimited() -> None:
    assert cache.key_of(["ab", "c"]) != cache.key_of(["a", "bc"]) != cache.key_of(["abc"])


RESOLVED = Target("cpu", "znver4", "+avx2", "x86_64")
CHANGES: dict[str, Callable[[pytest.MonkeyPatch], str]] = {
    "IR": lambda patch: _code_key(fingerprint="other"),
    "CPU model": lambda patch: _code_key(target=Target("cpu", "znver5", "+avx2", "x86_64")),
    "CPU features": lambda patch: _code_key(target=Target("cpu", "znver4", "+avx", "x86_64")),
    "architecture": lambda patch: _code_key(target=Target("cpu", "znver4", "+avx2", "aarch64")),
    "kind of target": lambda patch: _code_key(target=Target("cuda", "sm_80")),
    "strategy name": lambda patch: _code_key(wanted="plain"),
    "flags": lambda patch: _with(patch, strategies, "COMMON", ("--other",)),
    "strategy flags": lambda patch: _with(patch, strategies, "TABLE", strategies.TABLE[:1]),
    "strategy meaning": lambda patch: _with(patch, strategies, "VERSION", -1),
    "IREE version": lambda patch: _with(patch, session, "version", lambda: "9.9"),
    "file layout": lambda patch: _with(patch, cache, "FORMAT", -1),
}


def _code_key(fingerprint: str = "ir", target: Target = RESOLVED, wanted: str = "auto") -> str:
    return pipeline.cache_key(fingerprint, target, wanted, strategies.for_kind("cpu"))


def _with(patch: pytest.MonkeyPatch, module: object, name: str, value: object) -> str:
    patch.setattr(module, name, value)
    return _code_key()


@pytest.mark.parametrize("ingredient", CHANGES)
def test_the_key_changes_with_each_ingredient(
    monkeypatch: pytest.MonkeyPatch, ingredient: str
) -> None:
    before = _code_key()
    assert CHANGES[ingredient](monkeypatch) != before


def test_the_key_does_not_contain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    real = host.resolve(parse("cpu"))
    keys: dict[str, list[str]] = {}
    key_of = cache.key_of

    def remember(parts: list[str]) -> str:
        keys[parts[0]] = parts
        return key_of(parts)

    monkeypatch.setattr(cache, "key_of", remember)
    pipeline.compile_ir(b"func.func @f() { return }", parse("cpu"), strategy="plain-O0")
    parts = keys["code"]
    assert f"--iree-llvmcpu-target-cpu={real.chip}" in parts
    assert f"--iree-llvmcpu-target-cpu-features={real.features}" in parts
    assert not any("=host" in part for part in parts)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "one byte": lambda raw: raw[:1],
    "only a digest": lambda raw: raw[:32],
    "cut in the facts": lambda raw: raw[:50],
    "cut by one byte": lambda raw: raw[:-1],
    "a byte more": lambda raw: raw + b"\0",
    "a bit flipped in the digest": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "a bit flipped in the length": lambda raw: raw[:32] + bytes([raw[32] ^ 1]) + raw[33:],
    "a bit flipped in the facts": lambda raw: raw[:45] + bytes([raw[45] ^ 4]) + raw[46:],
    "a bit flipped in the data": lambda raw: raw[:-9] + bytes([raw[-9] ^ 128]) + raw[-8:],
    "zeros": lambda raw: bytes(len(raw)),
    "garbage": lambda raw: os.urandom(len(raw)),
    "a whole file of nothing": lambda raw: hashlib.sha256(b"").digest(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupted_entry_is_missing_and_can_be_rewritten(damage: str) -> None:
    cache.write(_key("a"), ENTRY)
    path = _path("a")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert cache.read(_key("a")) is None
    assert not path.exists()
    cache.write(_key("a"), ENTRY)
    assert cache.read(_key("a")) == ENTRY


@pytest.mark.parametrize("damage", DAMAGE)
def test_corrupted_entries_are_listed(damage: str) -> None:
    cache.write(_key("a"), ENTRY)
    _path("a").write_bytes(DAMAGE[damage](_path("a").read_bytes()))
    assert [item.key for item in cache.listings()] == [_key("a")]


def test_a_corrupted_entry_is_recompiled() -> None:
    source = b"func.func @f() { return }"
    first = pipeline.compile_ir(source, parse("cpu:generic"), strategy="plain-O0")
    paths = config.current().cache_dir.glob("*/*.entry")
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    again = pipeline.compile_ir(source, parse("cpu:generic"), strategy="plain-O0")
    third = pipeline.compile_ir(source, parse("cpu:generic"), strategy="plain-O0")
    assert [c.cached for c in (first, again, third)] == [False, False, True]
    assert again.data == first.data == third.data


def _fill(names: str, size: int = MIB // 2) -> None:
    """Entries of half a MiB, each used a second after the one before it."""
    for age, name in enumerate(reversed(names)):
        cache.write(_key(name), Entry(bytes(size), {}))
        used = time.time() - age - 1
        os.utime(_path(name), (used, used))


def _present(names: str) -> str:
    kept = {item.key for item in cache.listings()}
    return "".join(name for name in names if _key(name) in kept)


def test_least_recently_used_entries_are_evicted_first() -> None:
    _fill("abcd")
    with config.override(cache_limit_mb=2):
        cache.write(_key("e"), Entry(bytes(MIB // 2), {}))
    assert _present("abcde") == "cde"


def test_reading_an_entry_protects_it_from_eviction() -> None:
    _fill("abcd")
    assert cache.read(_key("a")) is not None
    with config.override(cache_limit_mb=2):
        cache.write(_key("e"), Entry(bytes(MIB // 2), {}))
    assert _present("abcde") == "ade"


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_the_size_limit_holds_after_every_write(folder: Path, limit: int) -> None:
    with config.override(cache_limit_mb=limit):
        for name in "abcdef":
            cache.write(_key(name), Entry(bytes(MIB // 2), {}))
            assert sum(item.size for item in cache.listings()) <= limit * MIB
    assert len(cache.listings()) == max(2 * limit - 1, 0)


def test_an_entry_larger_than_the_limit_is_not_kept() -> None:
    with config.override(cache_limit_mb=1):
        cache.write(_key("a"), Entry(bytes(2 * MIB), {}))
    assert cache.listings() == []


def test_failed_ir_counts_towards_the_limit(folder: Path) -> None:
    cache.failed_folder().mkdir(parents=True)
    old = cache.failed_folder() / "old.mlir"
    old.write_bytes(bytes(MIB))
    os.utime(old, (1, 1))
    with config.override(cache_limit_mb=1):
        cache.write(_key("a"), ENTRY)
    assert not old.exists()
    assert _present("a") == "a"


def test_an_entry_evicted_by_another_process_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _fill("abcd")
    unlink = Path.unlink

    def unlink_twice(path: Path, missing_ok: bool = False) -> None:
        unlink(path)  # the other process was faster
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_twice)
    with config.override(cache_limit_mb=2):
        cache.evict()
    assert _present("abcd") == "bcd"


def test_clear_removes_and_counts_all_entries(folder: Path) -> None:
    _fill("ab", size=10)
    cache.failed_folder().mkdir()
    (cache.failed_folder() / "x.mlirbc").write_bytes(b"x")
    assert cache.clear() == 2
    assert _names(folder) == []


def test_listings_are_sorted_by_last_use() -> None:
    _fill("ab", size=10)
    cache.write(_key("c"), ENTRY)
    listed = cache.listings()
    assert [item.key for item in listed] == [_key("c"), _key("b"), _key("a")]
    assert listed[0].facts == ENTRY.facts
    assert listed[0].size == _path("c").stat().st_size


def test_old_files_of_killed_writers_are_removed(folder: Path) -> None:
    cache.write(_key("a"), ENTRY)
    shelf = _path("a").parent
    (shelf / ".writing-old").write_bytes(b"part")
    (shelf / ".writing-now").write_bytes(b"part")
    an_hour_ago = time.time() - 3700
    os.utime(shelf / ".writing-old", (an_hour_ago, an_hour_ago))
    cache.write(_key("b"), ENTRY)
    assert [name for name in _names(folder) if "writing" in name] == [".writing-now"]


WRITER = """
import sys
from turbine.compiler import cache
data = bytes([int(sys.argv[1])]) * (4 << 20)
print("ready", flush=True)
while True:
    cache.write(cache.key_of(["a"]), cache.Entry(data, {"by": sys.argv[1]}))
"""


def test_readers_see_whole_entries_during_writes() -> None:
    with _python(WRITER, "7") as process:
        while cache.read(_key("a")) is None:
            assert process.poll() is None
        found = [cache.read(_key("a")) for _ in range(100)]
        process.kill()
    whole = Entry(b"\7" * 4 * MIB, {"by": "7"})
    assert sum(entry == whole for entry in found) == 100


def test_killed_writers_leave_whole_entries_or_none(folder: Path) -> None:
    for delay in (0.0, 0.003, 0.01, 0.03, 0.05):
        with _python(WRITER, str(int(delay * 1000))) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.kill()
        visible = [path for path in folder.glob("*/*") if not path.name.startswith(".writing-")]
        found = cache.read(_key("a"))
        assert len(visible) == (found is not None)
        assert found is None or len(found.data) == 4 * MIB


def test_a_killed_writer_leaves_nothing_visible(folder: Path) -> None:
    killed_at = "import os, signal; os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)"
    with _python(killed_at + WRITER, "1") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert cache.read(_key("a")) is None
    assert cache.listings() == []
    [left] = _names(folder)
    assert left.startswith(".writing-")


SHARER = """
import os, sys
from turbine.compiler import cache
me, size, wrong = sys.argv[1], 250_000, 0
for number in range(20):
    key = cache.key_of([str(number % 5)])
    found = cache.read(key)
    if found is not None and found.data != found.facts["by"].encode() * size:
        wrong += 1
    cache.write(key, cache.Entry(me.encode() * size, {"by": me}))
print(wrong)
"""


@pytest.mark.parametrize(("limit_mb", "kept"), [(100, 5), (1, 4)])
def test_eight_processes_share_five_keys(folder: Path, limit_mb: int, kept: int) -> None:
    env = {"TURBINE_CACHE_LIMIT_MB": str(limit_mb)}
    processes = [_python(SHARER, str(number), **env) for number in range(8)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [out.strip() for out, _ in answers] == ["0"] * 8, answers
    assert [name for name in _names(folder) if "writing" in name] == []
    assert sum(cache.read(_key(str(number))) is not None for number in range(5)) == kept


def _python(script: str, *words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TURBINE_CACHE_DIR": str(config.current().cache_dir), **env},
    )


def test_a_folder_that_cannot_be_created_warns_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with config.override(cache_dir=tmp_path / "file" / "cache"):
        with pytest.warns(RuntimeWarning, match="cannot write its cache"):
            cache.write(_key("a"), ENTRY)
        cache.write(_key("b"), ENTRY)  # a second warning would be an error
        assert cache.read(_key("a")) is None
        assert cache.listings() == []
        assert cache.clear() == 0


@pytest.fixture
def seed(tmp_path: Path) -> Iterator[Path]:
    """A second folder with an entry, which is only read."""
    with config.override(cache_dir=tmp_path / "seed"):
        cache.write(_key("seeded"), ENTRY)
    with config.override(cache_seed_dir=tmp_path / "seed"):
        yield tmp_path / "seed"


def test_entries_of_the_seed_are_read_and_new_ones_are_written_elsewhere(
    seed: Path, folder: Path
) -> None:
    assert cache.read(_key("seeded")) == ENTRY
    cache.write(_key("a"), ENTRY)
    assert cache.read(_key("a")) == ENTRY
    assert [item.key for item in cache.listings()] == [_key("a")]
    assert [item.key for item in cache.listings(seed)] == [_key("seeded")]


def test_an_entry_of_the_cache_wins_over_that_of_the_seed(seed: Path) -> None:
    cache.write(_key("seeded"), Entry(b"own", {}))
    found = cache.read(_key("seeded"))
    assert found is not None
    assert found.data == b"own"


def test_nothing_in_the_seed_is_changed(seed: Path) -> None:
    [entry] = seed.glob("*/*")
    entry.write_bytes(b"damaged")
    os.utime(entry, (1, 1))
    with config.override(cache_limit_mb=0):
        assert cache.read(_key("seeded")) is None
        cache.write(_key("a"), ENTRY)
        assert cache.clear() == 0
    assert entry.read_bytes() == b"damaged"
    assert entry.stat().st_mtime == 1


def test_a_seed_that_others_may_write_is_not_read(seed: Path) -> None:
    seed.chmod(0o770)
    with pytest.warns(RuntimeWarning, match="does not read the seed of its cache: .*; remove it"):
        assert cache.read(_key("seeded")) is None
    assert cache.read(_key("seeded")) is None  # a second warning would be an error


def test_a_seed_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with config.override(cache_seed_dir=tmp_path / "absent"):
        with pytest.warns(RuntimeWarning, match="seed of its cache: .*absent"):
            assert cache.read(_key("a")) is None
        cache.write(_key("a"), ENTRY)
        assert cache.read(_key("a")) == ENTRY


def test_a_compile_is_found_in_the_seed(tmp_path: Path) -> None:
    def is_cached() -> bool:
        source = b"func.func @f() { return }"
        return pipeline.compile_ir(source, parse("cpu:generic"), strategy="plain-O0").cached

    with config.override(cache_dir=tmp_path / "seed"):
        assert not is_cached()
    with config.override(cache_seed_dir=tmp_path / "seed"):
        assert is_cached()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_an_entry_that_a_network_file_system_lost_is_missing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such as one that another machine replaced or evicted while this one had it open.
    cache.write(_key("a"), ENTRY)

    def lose(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lose)
        assert cache.read(_key("a")) is None
    assert cache.read(_key("a")) == ENTRY


def test_no_lock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Locks of network file systems may hang, or exclude nobody.
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(f"fcntl.{name}", refuse)
    monkeypatch.setattr("os.link", refuse)
    cache.write(_key("a"), ENTRY)
    assert cache.read(_key("a")) == ENTRY


def test_a_read_only_folder_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(_key("a"), ENTRY)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    monkeypatch.setattr("os.utime", refuse)
    assert cache.read(_key("a")) == ENTRY
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        cache.write(_key("b"), ENTRY)
    cache.write(_key("b"), ENTRY)  # a second warning would be an error


def test_compilation_works_without_a_writable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with config.override(cache_dir=tmp_path / "file"), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            compiled = pipeline.compile_ir(
                b"func.func @f() { return }", parse("cpu:generic"), strategy="plain-O0"
            )
            assert not compiled.cached
    assert [w.category for w in told] == [RuntimeWarning]


def test_a_full_disk_leaves_no_partial_entry(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        cache.write(_key("a"), ENTRY)
    assert _names(folder) == []


FULL = """
import resource, warnings
from turbine.compiler import cache
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for name in ("a", "b"):
        cache.write(cache.key_of([name]), cache.Entry(bytes(1 << 20), {}))
    cache.write(cache.key_of(["small"]), cache.Entry(b"fits", {}))
print(len(told), "File too large" in str(told[0].message))
print([cache.read(cache.key_of([name])) is not None for name in ("a", "b", "small")])
"""


def test_a_short_write_leaves_no_partial_entry(folder: Path) -> None:
    out, _ = _python(FULL).communicate(timeout=60)
    assert out.splitlines() == ["1 True", "[False, False, True]"]
    assert len(_names(folder)) == 1


def test_an_interrupt_during_a_write_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    replace = os.replace

    def replace_and_interrupt(old: str, new: str) -> None:
        replace(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", replace_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.write(_key("a"), ENTRY)
    assert cache.read(_key("a")) == ENTRY
