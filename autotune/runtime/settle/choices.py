"""Choices of launches by times measured where a table is used: in memory, and in a small file.

A file holds choices for one table. Choices that a table settles by itself are in the cache folder, one file
for each GPU model, driver, power limit and cuBLAS that they were settled on: the fastest there need not be
the fastest elsewhere. Choices that an application pins (`export_choices`) name no GPU, and serve all GPUs of
the table.

Nothing is taken on trust. A file with one changed byte, or of another table, is not used. A choice is not
used if the table lacks its kernel, or if that kernel must not serve the call.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from ...facts.device import Conditions
from ...facts.gemm import Gemm
from ...files import folder_files, strict
from ...files.errors import AutotuneError, DispatchError, warn_served
from ...files.folder_files import read_file
from ...files.output_file import NotOwn, check_own, default_cache_dir, own_folder, write_file
from ...files.strict import Within
from ...files.words import counted
from ...kernel.launch import has_work
from ...perf_model.model_figures import VALUES, slower_by
from ..choose.blas_provider import BlasProvider
from ..choose.chooser import Call, Pick, Provider, call_signature, in_splits
from ..launch.devices import OpenGpu
from ..table.table import Extent, Kernel, Table, TimeUs

SCHEMA_VERSION = 2
MOST_EXCESS = 1e30
FOLDER = "choices"  # in the cache folder
MAX_CHOICES = 4096  # of a file: beyond them nothing more is settled
MAX_LEFT = 1 << 14  # call signatures that are remembered as not to be settled: 1 KB each
MAX_FILE_BYTES = 4 << 20  # a choice takes 250 bytes
_HINT = "write it again with export_choices, from this table"
_REPEAT = "it is settled anew"

Lead = Annotated[int, Within(1, 1 << 62)]
Distance = Annotated[int, Within(0, 1 << 62)]
Offset = Annotated[int, Within(0, 8)]
Key = TypeVar("Key")
One = TypeVar("One", bound=Any)
Tell = Callable[[str, str], None]  # of what, and what


@dataclass(frozen=True)
class Choice:
    """The fastest of some launches, and what cuBLAS took, for one call signature: leading dimensions in
    elements, and the operands' addresses modulo 16 bytes (0, 4 or 8: 12 allows the same as 4)."""

    m: Extent
    n: Extent
    k: Extent
    trans_a: bool
    trans_b: bool
    lds: tuple[Lead, Lead, Lead]
    offsets: tuple[Offset, Offset, Offset]
    kernel: str
    split_k: Extent
    time_us: TimeUs  # of one launch, measured
    num_timed: Annotated[int, Within(1, 256)]  # launches that were timed
    cublas_us: TimeUs | None  # beside them; None where it was not timed, or is surely slower
    excess: Annotated[float, Within(1, MOST_EXCESS)]  # times that its sums are too deep, by errors

    @property
    def provider(self) -> Provider:
        if self.cublas_us is None or self.cublas_us >= self.time_us * slower_by(self.excess):
            return "autotune"
        return "cublas"

    @property
    def call(self) -> Call:
        return Call(Gemm(self.m, self.n, self.k, self.trans_a, self.trans_b), self.lds, self.offsets)

    def overrules(self, _: Choice) -> bool:
        return True


@dataclass(frozen=True)
class SettledOn:
    """What choices hold for, besides their table. `cublas`: its version, None if it was no alternative."""

    gpu_name: str
    num_sms: Annotated[int, Within(0, 1 << 16)]
    driver: str
    power_limit_w: Annotated[float, Within(0, 1e6)] | None
    cublas: str | None

    @classmethod
    def under(cls, here: Conditions, cublas: str | None) -> SettledOn:
        driver = here.driver_version or f"CUDA {here.cuda_version}"
        return cls(here.gpu_name, here.num_sms, driver, here.power_limit_w, cublas)


@dataclass(frozen=True)
class LiveKey:
    """A call signature of a routed program. `batch`: the number of products, and their distances."""

    m: Extent
    n: Extent
    k: Extent
    trans_a: bool
    trans_b: bool
    batch: tuple[Extent, Distance, Distance, Distance]
    lds: tuple[Lead, Lead, Lead]
    offsets: tuple[Offset, Offset, Offset]
    has_bias: bool


@dataclass(frozen=True)
class LiveChoice:
    """What served such calls best in a program: a launch, or torch's own kernel (""). `limited_by`: what
    limited the program meanwhile; `num_samples`: by which it was decided."""

    call: LiveKey
    kernel: str
    split_k: Extent
    limited_by: str
    num_samples: Annotated[int, Within(1, 256)]

    def overrules(self, other: LiveChoice) -> bool:
        return self.num_samples >= other.num_samples


@dataclass(frozen=True)
class ChoiceFile:
    """All that a file of choices holds. `settled_on` is None in what was exported."""

    format: str
    schema_version: int
    checksum: str
    table: str
    settled_on: SettledOn | None
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class LiveFile(ChoiceFile):
    """The same of what programs settled on their own calls."""

    choices: tuple[LiveChoice, ...]  # type: ignore[assignment]


_FORMATS = {ChoiceFile: "autotune choices", LiveFile: "autotune live choices"}


def name_of(table: Table) -> str:
    """Distinguishes a table from others: by its export time, and by its kernels."""
    parts = (
        table.created_at,
        table.source_hash,
        *(f"{kernel.id} {kernel.sha256}" for kernel in table.kernels),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def render(
    table: str, settled_on: SettledOn | None, choices: Iterable[Any], kind: type[ChoiceFile] = ChoiceFile
) -> str:
    """The text of a file, a choice a line. `table` is its name."""
    head = _FORMATS[kind], SCHEMA_VERSION, folder_files.BLANK, table, settled_on and asdict(settled_on)
    names = [one.name for one in fields(ChoiceFile) if one.name != "choices"]
    head_text = json.dumps(dict(zip(names, head, strict=True)))
    lines = ",\n".join(json.dumps(asdict(choice)) for choice in choices)
    return folder_files.with_checksum(f'{head_text[:-1]}, "choices": [\n{lines}\n]}}\n')


def read(path: Path, table: str, advice: str, kind: Any = ChoiceFile) -> Any:
    """A file of choices of a kind for the table of this name. Raises DispatchError, which ends with `advice`,
    if the file is damaged or of another table, FileNotFoundError if there is none."""
    try:
        text = read_file(path, MAX_FILE_BYTES, advice).decode()
        data = strict.parse(text)
        _check_head(data, _FORMATS[kind])
        folder_files.verify(text, data.get("checksum"))
        found = strict.read(kind, data, "choices")
    except strict.NewerVersion as error:
        raise DispatchError(f"{path} holds choices of {error}; use a newer autotune, or {advice}") from error
    except (strict.Mismatch, UnicodeError) as error:
        raise DispatchError(f"{path} holds no choices that can be used: {error}; {advice}") from error
    if found.table != table:
        raise DispatchError(f"{path} holds choices for another table; {advice}")
    return found


def _check_head(data: Any, form: str) -> None:
    if type(data) is not dict or data.get("format") != form:
        raise strict.Mismatch("it is no file of choices")
    strict.check_version(data.get("schema_version"), SCHEMA_VERSION, "schema")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise strict.Mismatch(f"it is not of schema {SCHEMA_VERSION}, which this code reads")


class Choices(Generic[Key, One]):
    """What was settled on one GPU model, in memory and, where it has a path, in a file. Threads may share
    it. `kind`: of the file.

    Two processes may write at once: each adds its choices to those that it finds in the file. A choice that
    one writes after the other has read, and before the other replaces the file, is lost from the file until
    its process writes again; else a later process settles it again. There is no lock: a stopped process could
    hold one for ever."""

    def __init__(
        self,
        table: str,
        settled_on: SettledOn | None,
        path: Path | None,
        tell: Tell,
        kind: type[ChoiceFile] = ChoiceFile,
    ) -> None:
        self._table, self._settled_on, self._path, self._tell = table, settled_on, path, tell
        self._kind = kind
        self._lock = threading.Lock()
        self._known = self._stored()

    @property
    def is_full(self) -> bool:
        return len(self._known) >= MAX_CHOICES

    def find(self, kind: Key) -> One | None:
        return self._known.get(kind)

    def all(self) -> Mapping[Key, One]:
        return self._known

    def add(self, *choices: One) -> None:
        """Keep choices, and write them to the file if possible: no product depends on that."""
        with self._lock:
            found = self._stored()
            for choice in (*self._known.values(), *choices):
                before = found.get(choice.call)
                if before is None or choice.overrules(before):
                    found[choice.call] = choice
            self._known = found
            if self._path is None:
                return
            try:
                own_folder(self._path.parent.parent, FOLDER)
                text = render(self._table, self._settled_on, self._latest(), self._kind)
                write_file(self._path, text, option="AUTOTUNE_CACHE")
            except (OSError, AutotuneError) as error:
                self._path = None
                self._tell("keeping", f"What this table settles is not kept: {error}")

    def _latest(self) -> Collection[One]:
        return list(self._known.values())[-MAX_CHOICES:]

    def _stored(self) -> dict[Key, One]:
        """What the file holds. A file that cannot be used is reported, and replaced at the next write."""
        if self._path is None:
            return {}
        try:
            found = read(self._path, self._table, _REPEAT, self._kind)
            if found.settled_on == self._settled_on:
                return {choice.call: choice for choice in found.choices}
            fault = f"{self._path} was settled elsewhere; {_REPEAT}"
        except FileNotFoundError:
            return {}
        except DispatchError as error:
            fault = str(error)
            if os.path.lexists(self._path) and not os.path.isfile(self._path):  # noqa: PTH113 (never raise)
                self._path = None  # not to be written: opening a pipe would block
        self._tell("keeping", fault)
        return {}


class KnownChoices:
    """Choices that replace the chooser's: those pinned, or those settled on the call's GPU.
    Threads may share it.

    `is_first_use`: call signatures that the model picks for are to be settled, and earlier choices for such a
    GPU serve from its first call on."""

    def __init__(
        self,
        table: Table,
        kernels: Mapping[str, Kernel],
        pinned: Path | None,
        is_first_use: bool,
        blas: BlasProvider,
    ) -> None:
        self.is_first_use = is_first_use
        self._blas = blas
        self._kernels = kernels
        self._table = name_of(table)
        self._pinned = _pinned(pinned, self._table)
        self._settled: dict[int, Choices[Call, Choice]] = {}  # by GPU
        self._live: dict[int, Choices[LiveKey, LiveChoice]] = {}  # likewise
        self._left: set[Call] = set()  # that this process does not settle
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def pick(self, call: Call, device: int | None = None) -> Pick | None:
        """The launch that was chosen for a call, on a GPU; None: on any GPU with settled choices."""
        if not (self._pinned or self._settled):
            return None
        kind = call_signature(call)
        found = self._of(call, self._pinned.get(kind), "pinned as the fastest")
        for number, choices in tuple(self._settled.items()):
            if found is None and device in (None, number):
                found = self._of(call, choices.find(kind), "the fastest")
        return found

    def is_open(self, call: Call, pick: Pick, device: int) -> bool:
        """Whether a call is to be settled at its first use. Batches never are."""
        may_be = self.is_first_use and not call.gemm.is_batched and call.gemm.k > 0
        if not may_be or call_signature(call) in self._left:
            return False
        return pick.how == "modelled" or self._blas.is_unproven(pick, call, device)

    def leave(self, call: Call) -> None:
        """Settle no call of this kind any more, as long as it is remembered."""
        if len(self._left) >= MAX_LEFT:
            self._left = set()
        self._left.add(call_signature(call))

    def choices_on(self, gpu: OpenGpu) -> Choices[Call, Choice]:
        """The choices of a GPU; its file is read the first time."""
        return self._on(self._settled, gpu, ChoiceFile)

    def live_on(self, gpu: OpenGpu) -> Choices[LiveKey, LiveChoice]:
        """What programs settled on their own calls on a GPU, likewise."""
        return self._on(self._live, gpu, LiveFile)

    def _on(
        self, kept: dict[int, Choices[Key, One]], gpu: OpenGpu, kind: type[ChoiceFile]
    ) -> Choices[Key, One]:
        found = kept.get(gpu.device)
        if found is None:
            with self._lock:
                found = kept.get(gpu.device) or self._open(gpu, kind)
                kept[gpu.device] = found
        return found

    def export(self, path: Path) -> None:
        """Write all pinned or settled choices, for any GPU of the table. Raises DispatchError."""
        choices: dict[Call, Choice] = {}
        for found in (self._pinned, *(settled.all() for settled in self._settled.values())):
            choices = {**found, **choices}
        try:
            write_file(path, render(self._table, None, choices.values()), option="export_choices")
        except (OSError, AutotuneError) as error:
            raise DispatchError(str(error)) from error

    def tell(self, topic: str, message: str) -> None:
        """Warn, once about each thing."""
        if topic not in self._reported:
            self._reported.add(topic)
            warn_served(message)

    def _of(self, call: Call, choice: Choice | None, how: str) -> Pick | None:
        """The launch that a choice names, or cuBLAS. None if it must not serve: a file may say anything."""
        kernel = None if choice is None else self._kernels.get(choice.kernel)
        if choice is None or kernel is None or not _serves(kernel, call, choice.split_k):
            return None
        provider, num = choice.provider, choice.num_timed
        against = f"cuBLAS, {how} beside {counted(num, 'kernel')}"
        what = f"{how} of {num}" if provider == "autotune" else against
        rest = ", none of which is accurate enough" if choice.excess > 1 else ""
        shown = partial(str, f"{call.gemm} was settled: {what} that were timed{rest}")
        measured = choice.time_us, None, provider, choice.cublas_us
        return Pick(kernel.id, "settled", shown, choice.split_k, *measured)

    def _open(self, gpu: OpenGpu, kind: type[ChoiceFile]) -> Choices[Any, Any]:
        path, here = None, gpu.conditions
        settled_on = None if here is None else SettledOn.under(here, self._blas.version)
        if settled_on is not None:
            form = [_FORMATS[kind]] * (kind is not ChoiceFile)
            key = json.dumps([SCHEMA_VERSION, *form, self._table, asdict(settled_on)])
            name = hashlib.sha256(key.encode()).hexdigest()[:32]
            try:
                folder = (cache := default_cache_dir()) / FOLDER
                check_own(cache, folder)
                path = folder / f"{name}.json"
            except NotOwn as error:
                self.tell("keeping", f"What this table settles is not kept: {error}")
            except RuntimeError as error:  # without a home
                advice = "set AUTOTUNE_CACHE to a folder of yours"
                self.tell("keeping", f"What this table settles is not kept: {error}; {advice}")
        return Choices(self._table, settled_on, path, self.tell, kind)


def _pinned(path: Path | None, table: str) -> dict[Call, Choice]:
    """Raises DispatchError: a user who pins choices must not get others."""
    if path is None:
        return {}
    try:
        return {choice.call: choice for choice in read(path, table, _HINT).choices}
    except FileNotFoundError:
        raise DispatchError(f"no file of choices at {path}; {_HINT}") from None


def _serves(kernel: Kernel, call: Call, split_k: int) -> bool:
    own = kernel.spec.split_k
    is_argument = kernel.spec.reduction in ("two_pass", "last_block", "last_wave")
    if split_k != own and not (is_argument and split_k in VALUES):
        return False
    return has_work(in_splits(kernel, split_k), call.gemm.k) and call.rejection(kernel, split_k) is None
