"""A server of tables, asked over HTTP (bounded times and sizes, no redirects, no proxies of the environment),
and what it gives: a table as an artefact, two files and a signed statement, whose SHA-256 is its address.

    signed.json     the statement's text, its Ed25519 signature, and the public key of who signed
    table.json, cubins.gz       as in an exported folder

The statement names the GPU, driver and cuBLAS that the table was measured with, and the SHA-256 of both
files. A cubin is code: what is not signed by a key that the reader was given is never read any further. The
table is read from the bytes that were checked, and it states the SHA-256 of each cubin, which is checked when
that is loaded. Only the signature needs the package `cryptography`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import ssl
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote, urlsplit

from ...facts.frozen import frozen
from ...files import strict
from ...files.errors import AutotuneError, DispatchError, EnvironmentProblem, UsageError
from ...files.folder_files import MAX_TABLE_BYTES, is_hex, is_sha256, read_file
from ...files.output_file import default_cache_dir, own_folder
from ...files.strict import Within
from ...files.wheel_libraries import CRYPTOGRAPHY, required
from ..table.gpu_models import CubinFiles, GpuModel
from ..table.table import CUBIN_FILE, TABLE_FILE, Table, parse

if TYPE_CHECKING:
    from ..choose.chooser import Counted
    from ..dispatcher import Dispatcher
    from ..served_model import ServedModel
    from .program_client import Offered, ProgramClient

SERVER, TOKEN = "AUTOTUNE_SERVER", "AUTOTUNE_SERVER_TOKEN"
TIMEOUT_S = 5.0  # of each step of an exchange
MAX_ANSWER_BYTES = 1 << 20
_FAULTS_OF_REQUESTS = (400, 405, 411, 413, 414, 415, 422)
_NOTHING: Mapping[str, str] = MappingProxyType({})


class NoAnswer(EnvironmentProblem):
    """The server is not there, refuses for now or for want of a token, or answers what it should not."""


class Refused(UsageError):
    """The server cannot do what was asked for."""


class Answer(NamedTuple):
    """Of a server. `tag`: of its content, for the next time."""

    status: int
    content: bytes
    tag: str

    def document(self) -> Any:
        """The JSON in it. Raises NoAnswer."""
        try:
            return strict.parse(self.content.decode())
        except ValueError as error:
            raise NoAnswer(
                f"the server's answer cannot be read ({error}); is it `autotune serve`?"
            ) from error


class ServerCalls:
    """A server by its URL, http:// or https://. Raises UsageError for any other."""

    def __init__(self, url: str, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is no number
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in ("http", "https") or not host or parts.username:
            raise UsageError(f"{SERVER} is {url!r}, no URL such as https://tune.example.com:8571; give one")
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._path, self._is_tls = parts.path.rstrip("/"), parts.scheme == "https"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._shown = f"{parts.scheme}://{parts.netloc}"

    def get(self, *path: str, most_bytes: int = MAX_ANSWER_BYTES, tag: str = "", **query: str) -> Answer:
        """What is at a path; 304, without content, if that still has the tag. Raises NoAnswer, Refused."""
        requested = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        headers = {"If-None-Match": tag} if tag else _NOTHING
        return self._ask(
            "GET", f"{_joined(path)}{'?' if requested else ''}{requested}", None, headers, most_bytes
        )

    def post(self, *path: str, content: bytes | dict[str, Any]) -> Answer:
        """Send JSON or bytes. Raises NoAnswer, Refused."""
        is_raw = isinstance(content, bytes)
        body = content if isinstance(content, bytes) else json.dumps(content, allow_nan=False).encode()
        kind = {"Content-Type": "application/octet-stream" if is_raw else "application/json"}
        return self._ask("POST", _joined(path), body, kind, MAX_ANSWER_BYTES)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], most_bytes: int
    ) -> Answer:
        try:
            connection = self._connection()
            try:
                connection.request(method, f"{self._path}{path}", body, {**self._headers, **headers})
                return self._read(connection.getresponse(), most_bytes)
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError) as error:  # ValueError: what a header may not hold
            raise NoAnswer(f"{self._shown} does not answer ({error}); is `autotune serve` up?") from error

    def _connection(self) -> HTTPConnection:
        if not self._is_tls:
            return HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        return HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _read(self, response: HTTPResponse, most_bytes: int) -> Answer:
        content = response.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise NoAnswer(f"{self._shown} answers with more than {most_bytes:,} bytes; it was not read")
        answer = Answer(response.status, content, response.getheader("ETag", ""))
        if response.status >= 300 and response.status not in (304, 404):
            kind = Refused if response.status in _FAULTS_OF_REQUESTS else NoAnswer
            raise kind(f"{self._shown} refuses ({response.status}): {_reason(content)}")
        return answer


def _reason(content: bytes) -> str:
    """What a server, of whatever kind, gives as its reason: a line that may be printed."""
    text = content.decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        text = str(strict.parse(text)["error"])
    return "".join(one if one.isprintable() else " " for one in text[:300])


def fetch_files(calls: ServerCalls, address: str) -> tuple[bytes, bytes, bytes]:
    """The files of a table of a server, none checked. Raises NoAnswer, Refused."""
    found = [calls.get("tables", address, name, most_bytes=most) for name, most in MAX_BYTES.items()]
    if any(one.status != 200 for one in found):
        raise Refused(f"the server has no table {address}")
    signed, table, cubins = (one.content for one in found)
    return signed, table, cubins


def _joined(path: tuple[str, ...]) -> str:
    return "/api/" + "/".join(quote(one, safe="") for one in path)


KEY = "AUTOTUNE_SERVER_KEY"  # of the environment: see read_keys
FORMAT, VERSION = "autotune signed table", 1
SIGNED_FILE = "signed.json"
MAX_SIGNED_BYTES = 1 << 14
MAX_CUBINS_BYTES = 512 << 20  # of all kernels of a table; those of an export take 16 MB unless told otherwise
MAX_BYTES = {SIGNED_FILE: MAX_SIGNED_BYTES, TABLE_FILE: MAX_TABLE_BYTES, CUBIN_FILE: MAX_CUBINS_BYTES}
_PREFIX = b"autotune signed table\0"  # no signature of anything else is one of a table
_HINT = "publish the table again with `autotune tables publish`"
PUBLIC = re.compile("[0-9a-f]{64}")  # a public key as text


@frozen()
class FileSum:
    """What a statement says of a file."""

    sha256: str
    num_bytes: Annotated[int, Within(1, MAX_CUBINS_BYTES)]

    @classmethod
    def of(cls, content: bytes) -> FileSum:
        return cls(hashlib.sha256(content).hexdigest(), len(content))


@frozen()
class Statement:
    """What is signed. `created_at`: of the table. `verified`: what was before it was published, its `files`
    or all its `kernels` on such a GPU."""

    format: str
    version: int
    gpu_name: str
    compute_capability: tuple[int, int]
    driver: str
    cublas: str
    created_at: str
    verified: str
    table: FileSum
    cubins: FileSum

    @property
    def gpu_model(self) -> GpuModel:
        return GpuModel.of(self.gpu_name, self.compute_capability)


class Signed(NamedTuple):
    """A statement's text with its signature and the public key that is said to have made it, in hexadecimal
    digits: nothing is proven yet."""

    text: str
    signature: str
    key: str

    @property
    def address(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self) -> bytes:
        return json.dumps(dict(zip(_FIELDS, self, strict=True))).encode()


_FIELDS = ("statement", "signature", "key")


def message(text: str) -> bytes:
    """What is signed of a statement's text."""
    return _PREFIX + text.encode()


def parse_signed(content: bytes) -> Signed:
    """Of `signed.json`; proves nothing. Raises DispatchError for anything else."""
    try:
        found: dict[str, str] = strict.read(dict[str, str], strict.parse(content.decode()), SIGNED_FILE)
        signed = Signed(*(found.pop(name) for name in _FIELDS))
        is_one = not found and len(signed.signature) == 128 and is_hex(signed.signature)
        if not (is_one and PUBLIC.fullmatch(signed.key)):
            raise strict.Mismatch("it has other fields, or no signature")
        return signed
    except (ValueError, KeyError) as error:  # Mismatch and what UTF-8 refuses are ValueErrors
        raise DispatchError(f"this is no signed table ({error}); {_HINT}") from error


def verified(signed: Signed, keys: Collection[str]) -> Statement:
    """The statement, once it is proven to be signed by one of these keys. Raises DispatchError if it is not,
    EnvironmentProblem without the package that proves it."""
    if signed.key not in keys:
        raise DispatchError(f"a table is signed by {signed.key[:16]}..., a key that nobody gave this program")
    with required("signatures cannot be checked, and nothing is loaded without", CRYPTOGRAPHY):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed.key))
        public.verify(bytes.fromhex(signed.signature), message(signed.text))
    except (InvalidSignature, ValueError):
        raise DispatchError(f"table {signed.address[:16]}... has a wrong signature; {_HINT}") from None
    try:
        found: Statement = strict.read(Statement, strict.parse(signed.text), "statement")
        strict.check_version(found.version, VERSION)
        if found.format != FORMAT:
            raise strict.Mismatch("it is of something else")
    except ValueError as error:
        raise DispatchError(f"a signed statement cannot be used ({error}); {_HINT}") from error
    return found


def checked_table(statement: Statement, table: bytes, cubins: bytes) -> Table:
    """The table of an artefact whose files are those of its statement. Raises DispatchError."""
    for name, expected, content in (
        (TABLE_FILE, statement.table, table),
        (CUBIN_FILE, statement.cubins, cubins),
    ):
        if FileSum.of(content) != expected:
            raise DispatchError(f"{name} is not what was signed; {_HINT}")
    found = parse(_text(table))
    if GpuModel.of_table(found) != statement.gpu_model:
        raise DispatchError(f"a table is signed for {statement.gpu_model}, and is for another GPU; {_HINT}")
    return found


def read_artifact(folder: Path, keys: Collection[str]) -> tuple[Statement, Table, CubinFiles]:
    """What lies in a folder, signed by one of these keys. Raises DispatchError, EnvironmentProblem."""
    try:
        signed, table, cubins = (read_file(folder / name, most, _HINT) for name, most in MAX_BYTES.items())
    except FileNotFoundError as error:
        raise DispatchError(f"{folder} is no signed table: {error.filename} is not there; {_HINT}") from None
    statement = verified(parse_signed(signed), keys)
    found = checked_table(statement, table, cubins)
    return statement, found, CubinFiles(folder, found)


def write_artifact(folder: Path, signed: Signed, table: bytes, cubins: bytes) -> Path:
    """Store an artefact in a folder of its address, whole or not at all; returns that. Raises OSError."""
    made = folder / signed.address
    if made.is_dir():
        return made
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary) / made.name
        new.mkdir()
        for name, content in ((SIGNED_FILE, signed.render()), (TABLE_FILE, table), (CUBIN_FILE, cubins)):
            (new / name).write_bytes(content)
        try:
            new.rename(made)
        except OSError:  # another process was first
            if not made.is_dir():
                raise
    return made


def read_keys(shown: str) -> frozenset[str]:
    """Public keys, from the text of a key or the path of a file that holds one a line, several separated by
    commas. Raises DispatchError."""
    keys = set[str]()
    for one in filter(None, map(str.strip, shown.split(","))):
        if PUBLIC.fullmatch(one):
            keys.add(one)
            continue
        try:
            lines = read_file(one, MAX_SIGNED_BYTES, "name another").decode("ascii").split()
        except (FileNotFoundError, UnicodeDecodeError):
            lines = []
        if not lines or not all(map(PUBLIC.fullmatch, lines)):
            raise DispatchError(
                f"{one!r} is neither a public key of 64 hexadecimal digits nor a file of such"
            )
        keys.update(lines)
    return frozenset(keys)


def is_address(text: str) -> bool:
    """Whether an artefact can have it."""
    return is_sha256(text)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DispatchError(f"{TABLE_FILE} is damaged: not UTF-8 text; {_HINT}") from error


# ---------------------------------------------------- what a program tells a server, and takes from it

MAX_SHAPES = 256  # of one message; the others follow
MAX_KEPT = 16  # tables in the cache folder
_FOLDER, _LAST = "served", ".last"


class ProgramExchange:
    """Speaks to the server that the environment names. Raises UsageError, DispatchError if that is wrong."""

    def __init__(self, client: ProgramClient) -> None:
        self._client = client
        self._calls = ServerCalls(os.environ[SERVER], os.environ.get(TOKEN, ""))
        self._keys = read_keys(os.environ.get(KEY, ""))
        self._reported: dict[tuple[int, Counted], int] = {}  # calls, by what served them
        self._told_gain = 0, 0.0

    # ---- what it tells

    def tell(self, dispatcher: Dispatcher) -> None:
        """How calls were served since the last time. Raises NoAnswer, and tells the same again."""
        models = {id(model.table): model for model in dispatcher.models}
        by_gpu: dict[GpuModel, list[tuple[tuple[int, Counted], int, dict[str, Any]]]] = {}
        for engine, counted in dispatcher.counts_by_engine():
            model = models.get(id(getattr(engine, "table", None)))
            key = id(engine), counted._replace(calls=0)
            new = counted.calls - self._reported.get(key, 0)
            if model is not None and counted.gemm is not None and new > 0:
                by_gpu.setdefault(model.gpu_model, []).append(
                    (key, counted.calls, _served(model, counted, new))
                )
        measured = dispatcher.measured_gain
        gain = measured.measured() if measured else (0, 0.0)
        for gpu_model, served in by_gpu.items():
            served.sort(key=lambda one: -one[2]["calls"])
            message = {
                "gpu_name": gpu_model.name,
                "compute_capability": list(gpu_model.compute_capability),
                "table": self._client.taken.get(gpu_model, ""),
                "shapes": [document for _, _, document in served[:MAX_SHAPES]],
                "measured": {"pairs": gain[0] - self._told_gain[0], "saved_us": gain[1] - self._told_gain[1]},
            }
            self._calls.post("served", content=message)
            self._told_gain = gain
            self._reported |= {key: calls for key, calls, _ in served[:MAX_SHAPES]}

    # ---- what it takes

    def restore(self, dispatcher: Dispatcher) -> None:
        """Take what an earlier process kept, if it still is what was signed. Raises OSError."""
        if not self._keys:
            return
        folder = own_folder(default_cache_dir(), _FOLDER)
        for model in dispatcher.models:
            with suppress(AutotuneError, FileNotFoundError):
                address = (folder / _last_of(model.gpu_model)).read_text(encoding="ascii").strip()
                self._offer(dispatcher, model, folder, address)

    def ask(self, dispatcher: Dispatcher) -> None:
        """Take current tables that a key of this program signed. Raises NoAnswer, DispatchError, OSError."""
        if not self._keys:
            return
        folder = own_folder(default_cache_dir(), _FOLDER)
        for model in dispatcher.models:
            known = self._client.knows(model.gpu_model) or ""
            environment, (major, minor) = model.table.environment, model.gpu_model.compute_capability
            answer = self._calls.get(
                "tables", "current", tag=f'"{known}"' if known else "", gpu_name=model.gpu_model.name,
                compute_capability=f"{major}.{minor}", driver=environment.driver_version,
                cublas=dispatcher.cublas_version or environment.cublas_version,
            )  # fmt: skip
            if answer.status == 200:
                address = answer.document().get("address")
                if isinstance(address, str) and is_address(address) and address != known:
                    self._offer(dispatcher, model, folder, address)

    def _offer(self, dispatcher: Dispatcher, model: ServedModel, folder: Path, address: str) -> None:
        """Offer a table to the program, from the cache folder or the server. Raises as `ask`."""
        if not is_address(address):
            raise DispatchError("another file lies where a table's address should")
        made = folder / address
        if not made.is_dir():
            signed, *files = fetch_files(self._calls, address)
            parsed = parse_signed(signed)
            if parsed.address != address:
                raise DispatchError("the server gave another table than was asked for; it was not loaded")
            made = write_artifact(folder, parsed, *files)
        try:
            statement, table, code = read_artifact(made, self._keys)
        except DispatchError:
            shutil.rmtree(made, ignore_errors=True)  # the server may have a whole one
            raise
        if statement.gpu_model != model.gpu_model:
            raise DispatchError(f"the server offers a table for {statement.gpu_model}; it was not loaded")
        is_older = table.created_at <= model.table.created_at
        if is_older and model.gpu_model not in self._client.taken:  # the folder's own is newer
            return
        offered: Offered = address, table, code
        self._client.offer(dispatcher, model.gpu_model, offered)
        _keep(folder, model.gpu_model, address)


def _served(model: ServedModel, counted: Counted, calls: int) -> dict[str, Any]:
    """How calls of one signature were served; what one takes, and what it takes cuBLAS, where known. An A of
    two-byte elements is told of as FP32, which servers tune for."""
    gemm = counted.gemm
    assert gemm is not None
    pick = model.pick(gemm)
    is_packed = counted.lds == gemm.lds
    return {
        "m": gemm.m, "n": gemm.n, "k": gemm.k, "layout": gemm.layout[:2], "batch": gemm.batch,
        "shared": "a" if gemm.shares_a else "b" if gemm.shares_b else "", "calls": calls,
        "lds": [] if is_packed else list(counted.lds),
        "how": pick.how, "provider": counted.provider, "expected_us": pick.expected_us or 0.0,
        "cublas_us": pick.cublas_us or 0.0,
    }  # fmt: skip


def _last_of(model: GpuModel) -> str:
    return hashlib.sha256(str(model).encode()).hexdigest()[:16] + _LAST


def _keep(folder: Path, model: GpuModel, address: str) -> None:
    """Name the table for later processes, and delete the oldest of many."""
    name = folder / _last_of(model)
    new = name.with_name(f"{name.name}.{os.getpid()}")
    new.write_text(address, encoding="ascii")
    new.replace(name)
    (folder / address).touch()
    tables = (path for path in folder.iterdir() if is_address(path.name))
    for old in sorted(tables, key=lambda path: -path.stat().st_mtime)[MAX_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
