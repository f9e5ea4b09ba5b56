"""Whatever a folder says: loading it is a DispatchError, or every kernel is launched as its config says.

Mutations of real tables come with a checksum that fits, so that only their meaning can be wrong; of bytes and
of cubins, without. The seed is fixed: see mutations.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import mutations
import pytest
from table_cases import (
    CONFIG,
    make_kernel,
    make_spec,
    make_table,
    older_text,
    rank,
    sign,
    slices,
    with_epilogues,
    write_table,
)

from autotune.export.package import packed, render
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.config import PARAMETER
from autotune.kernel.launch import EPILOGUES
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.soundness import OLDEST
from autotune.runtime.table.table import SCHEMA_VERSION, Table, launchable, load, parse

NUM_MUTATIONS = mutations.NUM or 400
SEED = 1 + mutations.SEED
EXTENTS = ((1, 1, 1), (513, 511, 77), (4096, 4096, 4096), (2**31 - 256, 4, 3), (64, 64, 100_000), (0, 5, 1))
CALLS = [Gemm(*extents, x[0] == "T", x[1] == "T") for extents in EXTENTS for x in LAYOUTS]

# As JSON: what no number, text or container may be, and what it may be and yet is not.
NASTY = (
    "0", "1", "-1", "2", "3", "8", "32", "64", "255", "256", "1024", "65536", "2147483647", "2147483648",
    "4294967296", "9223372036854775808", "9" * 20, "9" * 5000, "-" + "9" * 400, "1e308", "-1e308", "1e-320",
    "1e999", "-0.0", "0.5", "1.5", "NaN", "Infinity", "true", "false", "null", '""', '"NN"', '"exact"',
    '"two_pass"', '"last_wave"', '"cluster"', '"register"', '"\\ud800"', '"\\u0000"', '"../../x"',
    '"' + "x" * 9999 + '"',
    "[]", "{}", "[[]]", '{"a": 1}', "[" * 3000 + "]" * 3000, '{"a":' * 900 + "1" + "}" * 900,
)  # fmt: skip


class Raw(str):
    """JSON that Python would not write."""

    __slots__ = ()


def sample() -> Table:
    """Kernels of each kind and layout, a few shapes."""
    kernels = [
        make_kernel("fast", make_spec(vec_a=4, vec_b=4, vec_c=4, is_exact=True)),
        make_kernel("two", make_spec("TN", reduction="two_pass", split_k=2)),
        make_kernel("last", make_spec("NT", reduction="last_block", split_k=4), None),
        make_kernel("wave", make_spec("TT", reduction="last_wave", split_k=2, wave=132)),
        make_kernel("cluster", make_spec(reduction="cluster", split_k=8)),
        make_kernel("packed", make_spec(packs_a=True, packs_b=True, vec_a=4, vec_b=4)),
    ]
    gemms = [Gemm(512, 512, 512), Gemm(64, 64, 4096)]
    entries = tuple(rank(gemm, "fast", "packed") for gemm in gemms)
    return make_table(*kernels, entries=entries)


def with_added() -> Table:
    """The same with epilogues, one of which has its rows go through shared memory."""
    return with_epilogues(sample(), EPILOGUES["bias"], EPILOGUES["bias-gelu"])


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _holder(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        tree = tree[key]
    return tree


def _replace(rng: random.Random, tree: Any, place: tuple[Any, ...]) -> None:
    _holder(tree, place)[place[-1]] = Raw(rng.choice(NASTY))


def _choose(rng: random.Random, tree: Any, place: tuple[Any, ...]) -> None:
    """Another value that a parameter may have, or a number near by."""
    holder, name = _holder(tree, place), place[-1]
    if name in PARAMETER:
        holder[name] = rng.choice(PARAMETER[name].values)
    elif type(holder[name]) in (int, float):
        holder[name] = rng.choice((holder[name] * 2, holder[name] // 2, holder[name] + 1, -holder[name]))
    elif type(holder[name]) is bool:
        holder[name] = not holder[name]
    else:
        _replace(rng, tree, place)


def _drop(rng: random.Random, tree: Any, place: tuple[Any, ...]) -> None:
    del _holder(tree, place)[place[-1]]


def _double(rng: random.Random, tree: Any, place: tuple[Any, ...]) -> None:
    holder = _holder(tree, place)
    if isinstance(holder, list):
        holder.append(deepcopy(holder[place[-1]]))
    else:
        holder[f"{place[-1]}_"] = deepcopy(holder[place[-1]])


def _swap(rng: random.Random, tree: Any, place: tuple[Any, ...]) -> None:
    """With another value that stands under the same name, or beside it."""
    same = [p for p in _places(tree) if p[-1] == place[-1] and p != place]
    other = rng.choice(same) if same else (*place[:-1], rng.choice(list(_keys(_holder(tree, place)))))
    if other[: len(place)] == place or place[: len(other)] == other:
        return
    one, two = _holder(tree, place), _holder(tree, other)
    one[place[-1]], two[other[-1]] = two[other[-1]], one[place[-1]]


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


CHANGES: tuple[Callable[..., None], ...] = (*[_replace] * 2, *[_choose] * 3, _drop, _double, _swap)


def _text(tree: Any) -> str:
    """The text of a tree, some of whose values are Raw, signed."""
    raws: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, Raw):
            raws.append(node)
            return f"raw {len(raws) - 1} raw"
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, list) else node

    return sign(plain(tree), {f'"raw {i} raw"': raw for i, raw in enumerate(raws)})


def mutants(number: int, seed: int) -> Iterator[tuple[str, str]]:
    """What was done, and the text that it made."""
    rng = random.Random(seed)
    trees = [
        json.loads(render(sample())),
        json.loads(render(with_added())),
        *(json.loads(older_text(sample(), v)) for v in range(OLDEST, SCHEMA_VERSION)),
    ]
    leaves = [[p for p in _places(tree) if p[0] != "checksum"] for tree in trees]
    texts = [_text(tree) for tree in trees]
    for _ in range(number):
        which = rng.choice((0, 1, *range(len(trees))))
        if rng.random() < 0.1:
            yield _broken_bytes(rng, texts[which])
            continue
        tree, names = deepcopy(trees[which]), []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change, place = rng.choice(CHANGES), rng.choice(leaves[which])
            try:
                change(rng, tree, place)
            except (KeyError, IndexError, TypeError):  # another change took the place away
                continue
            names.append(f"{change.__name__} {'.'.join(map(str, place))}")
        yield "; ".join(names), _text(tree)


def _broken_bytes(rng: random.Random, text: str) -> tuple[str, str]:
    """A table of which bytes were changed, without another checksum."""
    raw = bytearray(text.encode())
    at = rng.randrange(len(raw))
    if rng.random() < 0.5:
        raw[at] ^= rng.randrange(1, 256)
        return "a byte", raw.decode("latin-1")
    end = min(len(raw), at + rng.randrange(1, 200))
    del raw[at:end]
    return "a cut", raw.decode("latin-1")


def is_accepted(text: str) -> bool:
    """Whether a table can be read; if so, it is launched by its configs and answers every call."""
    try:
        table = parse(text)
    except DispatchError as error:
        str(error).encode()  # it can be printed
        return False
    for kernel in table.kernels:
        expected = launchable(kernel, table.limits, "", table.max_workspace).spec
        assert kernel.spec == expected
        assert kernel.spec.threads <= 1024 and kernel.spec.smem_bytes <= table.limits.smem_per_block
    selector = Chooser(table)
    for gemm in CALLS:
        if gemm.m and gemm.n:
            try:
                pick = selector.pick(Call.packed(gemm))
            except DispatchError:
                continue
            kernel = selector.kernels[pick.kernel_id]
            assert Call.packed(gemm).rejection(kernel, pick.split_k) is None and kernel.is_plain
            for epilogue in table.epilogues:
                other = selector.variant(kernel.id, epilogue)
                plain = replace(other.spec, variant=kernel.variant, smem_bytes=kernel.spec.smem_bytes)
                assert plain == kernel.spec and other.variant.epilogue == epilogue
    return True


def test_mutants_of_tables_are_refused_or_harmless() -> None:
    count = Counter[str]()
    for what, text in mutants(NUM_MUTATIONS, SEED):
        try:
            accepted = is_accepted(text)
        except Exception as error:
            pytest.fail(f"{type(error).__name__} after: {what}\n{error}"[:2000])
        count["accepted" if accepted else "refused"] += 1
        if accepted and mutations.NUM:
            for one in what.split("; "):
                count[one.split(" ")[-1].split(".")[-1] + " accepted"] += 1
    if mutations.NUM:
        print("\n".join(f"{number:8,}  {what}" for what, number in count.most_common()))
    assert count["refused"] > 0.5 * NUM_MUTATIONS and count["accepted"]


@pytest.mark.stress
def test_every_leaf_refuses_every_nasty_value_or_takes_it_harmlessly() -> None:
    """The first kernel, the first entry and all that stands beside them, with everything once."""
    tree = json.loads(render(with_added()))
    places = [p for p in _places(tree) if not any(type(step) is int and step > 0 for step in p)]
    rng = random.Random(SEED)
    wanted = max(1, NUM_MUTATIONS // len(places))
    for place in places:
        for raw in rng.sample(NASTY, min(wanted, len(NASTY))):
            changed = deepcopy(tree)
            _holder(changed, place)[place[-1]] = Raw(raw)
            try:
                is_accepted(_text(changed))
            except Exception as error:
                pytest.fail(f"{type(error).__name__} with {raw[:40]} at {place}: {error}"[:2000])


def test_the_sample_itself_is_accepted() -> None:
    assert is_accepted(render(sample())) and is_accepted(render(with_added()))
    assert all(is_accepted(older_text(sample(), version)) for version in range(OLDEST, SCHEMA_VERSION))
    assert CONFIG.kernel == CONFIG


def test_cubins_of_other_bytes_are_refused(tmp_path: Path) -> None:
    """Flipped, cut, empty, grown, doubled, packed once more: the name of a cubin is what it holds. A flip in
    what is packed may change nothing: in its head, of a time say, or of a bit that no code has."""
    rng = random.Random(SEED)
    folder = write_table(sample(), tmp_path / "t")
    table = load(folder)
    whole = load_cubins(folder, table)
    path, places = folder / "cubins.gz", list(slices(folder).values())
    for number in range(max(100, NUM_MUTATIONS // 10)):
        place = rng.choice(places)
        content = path.read_bytes()
        code = content[place]
        at, bit = rng.randrange(len(code)), 1 << rng.randrange(8)
        flipped = code[:at] + bytes([code[at] ^ bit]) + code[at + 1 :]
        changed = (flipped, code[:at], b"", code + b"\0", code + code, packed(flipped))[number % 6]
        path.write_bytes(content.replace(code, changed))
        if number % 6 == 0:
            assert is_refused_or_the_same(folder, table, whole)
        else:
            with pytest.raises(DispatchError, match=r"is damaged: it"):
                load_cubins(folder, table)
        path.write_bytes(content)
    assert load_cubins(folder, table) == whole


def is_refused_or_the_same(folder: Path, table: Table, whole: dict[str, bytes]) -> bool:
    try:
        return load_cubins(folder, table) == whole
    except DispatchError:
        return True
