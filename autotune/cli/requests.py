"""What the command line reads: a record for each command. Its fields are the options, each declared once by
its name, type, help, default and rule; its docstring is the help, examples last.

Nothing heavy is imported here, so that `autotune --help` answers at once.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from ..facts.fitted import MAX_KERNELS
from ..facts.keywords import ExportKeywords, SearchKeywords, TrialKeywords
from .parsing import (
    REQUIRED,
    CommandRecord,
    argument,
    keyword,
    known_gpus,
    limit,
    number,
    one_of,
    option,
    whole,
    words,
)

# Options of several commands.
GPU = partial(keyword, SearchKeywords, "gpu", words("auto", "replay:"))
GPUS = partial(
    option, "A GPU: its index, UUID or `auto`; several at once: `all`, `0,1`, or a model as h100; or "
    "`replay:FILE`, a recorded space.",
    "auto", words("auto", "all", "replay:"),
)  # fmt: skip
REAL_GPUS = partial(
    option, "A GPU: its index, UUID or `auto`; several at once: `all`, `0,1`, or a model as h100.", "auto",
    words("auto", "all"),
)  # fmt: skip
REAL_GPU = partial(option, "A GPU: its index, UUID or `auto`.", "auto", words("auto"))
SHAPE = partial(option, "4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32.", "4096")
SHAPES = partial(
    option, "4096, 4096x128x4096 (m, n, k), 4096:NT or 512b32 (a batch of 32); repeatable.", [],
    flag="--shape", metavar="SHAPE",
)  # fmt: skip
SUITES = partial(
    option,
    "A TOML file of [[shape]] tables with m, n, k [, layout, batch, shared, epilogue, ld, align, count]; "
    "what programs recorded (AUTOTUNE_RECORD); or a list: a CSV of m,n,k, JSON, or PyTorch's TunableOp CSV. "
    "Repeatable: their calls add up.",
    [], flag="--suite", metavar="FILE",
)  # fmt: skip
WHERE = partial(keyword, TrialKeywords, "where", more="; repeatable", metavar="CONDITIONS")
MAX_WORKSPACE = partial(keyword, TrialKeywords, "max_workspace", number(), metavar="MIB")
ORDER = partial(keyword, TrialKeywords, "order", metavar="ORDER")
ACCURACY = partial(keyword, TrialKeywords, "accuracy", words("strict", "fp32", "fp32-range"))
DB = partial(keyword, TrialKeywords, "db")
CACHE = partial(keyword, TrialKeywords, "cache", words("cold", "warm"))
LARGEST_ERROR = partial(keyword, SearchKeywords, "max_error", limit())
ACCURATE = partial(keyword, ExportKeywords, "max_error", limit())
LIMIT = partial(option, "Show at most so many.", default=20, read=whole(1))
LIMIT_OR_ALL = partial(option, "Show at most so many: 20, or with --csv all.", None, whole(1))
TRIAL = partial(
    argument, "A trial, as `trials best`, `history` and `failures` list it.", REQUIRED,
    whole(1, name="ID, as `autotune trials history` lists it,"), metavar="ID",
)  # fmt: skip
PORT = partial(option, "Of this machine; 0: any that is free.", read=whole(0, 65535))
HOST = partial(
    option, "Its address: this machine alone by default; 0.0.0.0: all of its network's.", "127.0.0.1"
)
SEED = partial(keyword, SearchKeywords, "seed", whole())
MAPPED_TABLE = partial(
    option, "An exported folder: maps of what it serves, and how certain that is.", None, metavar="DIR"
)
LADDERS = partial(
    option, "What `autotune ladder --json` printed: shown with its shape; repeatable.", [],
    flag="--ladder", metavar="FILE",
)  # fmt: skip
ROUNDS = partial(option, "Interleaved rounds: samples of each kernel.", default=15, read=whole(3, 10_000))
SERVER = partial(
    option, "A server's URL, instead of --db; its token is in AUTOTUNE_SERVER_TOKEN.", None, metavar="URL"
)
PUBLISHED_TO = partial(
    option, "Publish on this server, by its URL, not in --db; its token is in AUTOTUNE_SERVER_TOKEN.", None,
    metavar="URL",
)  # fmt: skip
TRUSTED = partial(
    option, "Public keys that tables are signed by, or files of them; else AUTOTUNE_SERVER_KEY has them.", [],
    flag="--trust", metavar="KEY",
)  # fmt: skip
ADDRESS = partial(argument, "A table's address, or how it begins.", metavar="ADDRESS")
CLUSTER = partial(
    option,
    "Have a Ray cluster do it, by --gpu h100:4 (models and numbers): its address, as ray://head:10001. "
    "Its nodes need autotune, and a database on a server.",
    None, metavar="ADDRESS",
)  # fmt: skip
PUBLISHED_KERNELS = partial(
    option, "For shapes that were not tuned, beside the winners: of a published table.", MAX_KERNELS, whole()
)
TABLE = Path("sgemm_dispatch")
FOLDER = partial(argument, "An exported folder.", TABLE)


class SearchRequest(CommandRecord):
    """Search the best kernels for shapes on a GPU.

    It ends by itself when nothing better is likely, or after --seconds or --trials. Ctrl-C keeps everything;
    run the same command again to resume. Of a suite that counts calls, as programs record it,
    the shapes that take most time come first, and what the program gains is told.

    Examples:
        search --shape 4096 --seconds 60
        search --shape 4096x128x4096:NT --shape 1024 --trials 300
        search --suite shapes.toml --db shapes.db
        search --any 80 --seconds 600 --db any.db
        search --suite calls.json --seconds 600 --db calls.db
        search --suite calls.json --any 80 --seconds 600 --db any.db
        search --shape 4096 --where 'pack_a=0,reduction!=two_pass'
        search --gpu replay:space.json.gz --trials 100"""

    gpu: str = GPUS()
    like: str | None = option(
        "Accept this GPU as another of the same compute capability, an H200 NVL as h200: trials and times of "
        "that are lent to it. AUTOTUNE_LIKE does so for all commands, and for tables.",
        None, known_gpus, metavar="GPU",
    )  # fmt: skip
    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    trials: int | None = keyword(SearchKeywords, "trials", whole(1))
    seconds: float | None = keyword(SearchKeywords, "seconds", number(is_above=True))
    num_drawn: int = keyword(SearchKeywords, "num_drawn", whole(), flag="--any", metavar="NUMBER")
    seed: int = SEED()
    sampler: str = keyword(SearchKeywords, "sampler", words("autotune", "random", "tpe", "gp", "cmaes"))
    seeds: str = option(
        "What a shape starts with: `shipped` kernels that are expected to do well on it, or `none`.",
        "shipped", words("shipped", "none"),
    )  # fmt: skip
    stale: bool = keyword(SearchKeywords, "stale", flag="--stale")
    insists: bool = keyword(SearchKeywords, "insists", flag="--insist")
    effort: str = keyword(SearchKeywords, "effort", words("quick", "standard", "thorough"))
    policy: Path | None = option(
        "A TOML file of values that are to differ (autotune/search_policy.py).", None, metavar="FILE"
    )
    cache: str = CACHE()
    max_error: float | None = LARGEST_ERROR()
    where: list[str] = WHERE()
    max_workspace: float | None = MAX_WORKSPACE()
    order: str | None = ORDER()
    accuracy: str = ACCURACY()
    a_type: str = keyword(SearchKeywords, "a_type", words("fp32", "bf16", "fp16"))
    db: str = DB()
    cluster: str | None = CLUSTER()
    events: Path | None = option(
        "Append what happens, one JSON object a line; -: to stdout.", None, metavar="FILE"
    )


class ExportRequest(CommandRecord):
    """Write the winners as a folder to import.

    A suite names the shapes to write. One that counts calls (count) says instead what kernels for shapes that
    were not tuned are chosen for.

    Examples:
        export-table
        export-table --db shapes.db --suite shapes.toml --out my_kernels"""

    db: str = DB()
    out: Path = option("The folder to write: what applications import.", TABLE)
    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    cache: str = CACHE()
    max_error: float | None = ACCURATE()
    where: list[str] = WHERE()
    max_workspace: float | None = MAX_WORKSPACE()
    order: str | None = ORDER()
    accuracy: str = ACCURACY()
    max_kernels: int = keyword(ExportKeywords, "max_kernels", whole())
    max_megabytes: float = keyword(ExportKeywords, "max_megabytes", number(most=math.inf))
    epilogues: list[str] = keyword(ExportKeywords, "epilogues", flag="--epilogue")
    form: str = option(
        "c: with sources for programs in C and C++, in its folder c.", "python", one_of("python", "c"),
        flag="--format",
    )  # fmt: skip
    adds: bool = keyword(ExportKeywords, "adds", flag="--add")


class SpaceRequest(CommandRecord):
    """Count the kernels for a GPU and a shape, explain rules.

    Examples:
        space --gpu h200 --shape 4096x128x4096:NT
        space --gpu h200 --where 'pack_a=0,bm>=64'
        space --gpu rtx-3090 --explain bm=64,bn=128,stages=8
        space --gpu a100 --accuracy fp32
        space --gpu replay:cache.json"""

    gpu: str = option(
        "A GPU here (index, UUID, `auto`), the name of a known model, as h200, or replay:FILE.", "auto",
        known_gpus,
    )  # fmt: skip
    shape: str = SHAPE()
    explain: str | None = option("Tell why this config is refused: bm=64,bn=128,...", None, metavar="CONFIG")
    where: list[str] = WHERE()
    max_workspace: float | None = MAX_WORKSPACE()
    order: str | None = ORDER()
    accuracy: str = ACCURACY()
    is_wide: bool = option("Count what is legal but known not to pay, too.", False, flag="--all")


class BestRequest(CommandRecord):
    """The winner of every study, against cuBLAS and the limit.

    Examples:
        trials best
        trials best --db shapes.db --shape 4096 --json"""

    db: str = DB()
    shapes: list[str] = SHAPES()
    max_error: float | None = ACCURATE()


class HistoryRequest(CommandRecord):
    """The newest trials, in the order in which they were made.

    Examples:
        trials history --limit 50
        trials history --csv > trials.csv"""

    db: str = DB()
    shapes: list[str] = SHAPES()
    limit: int | None = LIMIT_OR_ALL()


class FailuresRequest(HistoryRequest):
    """What failed and why.

    Examples:
        trials failures
        trials failures --shape 4096 --limit 5"""


class ShowRequest(CommandRecord):
    """Everything that is known of one trial.

    Examples:
        trials show 312
        trials show 312 --json"""

    trial: int = TRIAL()
    db: str = DB()


class DiffRequest(CommandRecord):
    """What differs between two trials: parameters, times, registers, conditions.

    Examples:
        trials diff 312 298
        trials diff 312 298 --json"""

    trial: int = TRIAL()
    other: int = TRIAL()
    db: str = DB()


class T4Request(CommandRecord):
    """Write the trials of a problem as T4, Kernel Tuner's results format.

    Examples:
        trials t4 --out 4096.json --shape 4096
        trials t4 --out 4096.json --recording space.json.gz"""

    out: Path = option("The JSON file to write.")
    db: str = DB()
    recording: Path | None = option("A recorded space, in the place of the database.", None, metavar="FILE")
    shape: str | None = option("Which problem, where there are several.", None)
    study: int | None = option("Which study of it, by number; without it the newest.", None)


class T1Request(T4Request):
    """Write the trials of a problem as T1, a cache that Kernel Tuner searches in simulation.

    Examples:
        trials t1 --out 4096.json --shape 4096
        trials t1 --out 4096.json --recording space.json.gz"""


class DashboardRequest(CommandRecord):
    """Show all trials in Optuna's dashboard, those of a search that runs as they come.

    Examples:
        trials dashboard
        trials dashboard --db shapes.db --port 8080"""

    db: str = DB()
    port: int = PORT(default=8572)
    host: str = HOST()


class MergeRequest(CommandRecord):
    """Copy all of another database, or of a recording, into this one.

    Nothing is doubled. Killed, or repeated, it goes on.

    Examples:
        trials merge other.db
        trials merge other.db --db postgresql://me@host/autotune"""

    other: str = argument("The database to read: a SQLite file, or a URL; or a recording.", metavar="OTHER")
    db: str = DB()


class CompareRequest(CommandRecord):
    """Compare the best of two databases, searches or tables, shape by shape.

    Examples:
        trials compare before.db after.db
        trials compare a.db#run1 a.db#run2
        trials compare a.db#3 sgemm_dispatch"""

    first: str = argument(
        "A database, a run (a.db#run3, as `runs` lists them) or study (a.db#3) of it, or an exported folder.",
        metavar="FIRST",
    )
    second: str = argument("Another one.", metavar="SECOND")
    shapes: list[str] = SHAPES()
    max_error: float | None = ACCURATE()


class ForgetRequest(CommandRecord):
    """Delete all trials of shapes or studies.

    Examples:
        trials forget --shape 4096
        trials forget --study 3 --yes"""

    db: str = DB()
    shapes: list[str] = SHAPES()
    studies: list[int] = option("A study, by its id; repeatable.", [], whole(1), flag="--study", metavar="ID")
    is_sure: bool = option("Do it, and do not only tell.", False, flag="--yes")


class RunsRequest(CommandRecord):
    """Who searched what: host, GPU, command, driver, versions.

    Examples:
        runs
        runs --db shapes.db --shape 4096 --json"""

    db: str = DB()
    shapes: list[str] = SHAPES()
    limit: int = LIMIT()


class ReportRequest(CommandRecord):
    """Draw what the database holds into one HTML file.

    Examples:
        report
        report --db shapes.db --shape 4096 --out 4096.html"""

    out: Path = option("The HTML file to write.", Path("report.html"))
    shapes: list[str] = SHAPES()
    table: Path | None = MAPPED_TABLE()
    ladders: list[Path] = LADDERS()
    db: str = DB()
    max_error: float | None = ACCURATE()


class ViewRequest(CommandRecord):
    """Show the same in the browser, and follow a search that runs.

    Examples:
        view
        view --db shapes.db --table sgemm_dispatch --port 8600"""

    shapes: list[str] = SHAPES()
    table: Path | None = MAPPED_TABLE()
    ladders: list[Path] = LADDERS()
    db: str = DB()
    port: int = PORT(default=8571)
    host: str = HOST()
    max_error: float | None = ACCURATE()


class EstimateRequest(CommandRecord):
    """Run a program of torch, count its products, and predict what it gains.

    No table is needed, and no GPU: without one it runs on the CPU. Ends as the program does.

    Examples:
        estimate train.py --epochs 1
        estimate --seconds 60 train.py
        estimate -m package.train --lr 0.1"""

    program: list[str] = argument(
        "A Python file, as it is, and its arguments.", metavar="PROGRAM [ARGUMENTS]..."
    )
    is_module: bool = option("PROGRAM is a module's name.", False, flag="-m")
    out: Path = option("The file to write its calls into: a suite for `search`.", Path("calls.json"))
    seconds: float = option("End the program after so many seconds; 0: let it end.", 0.0, number(0, 1e6))
    limit: int = LIMIT(default=10)


class CoverageRequest(CommandRecord):
    """Tell what of a program's calls a table serves tuned, modelled, by cuBLAS, or not well.

    By number and by time. No GPU is needed.

    Examples:
        coverage calls.json
        coverage calls.json sgemm_dispatch --limit 50
        coverage calls.json --json"""

    calls: Path = argument(
        "What programs recorded (AUTOTUNE_RECORD=FILE, record_calls), or a suite.", metavar="CALLS"
    )
    table: Path = FOLDER()
    limit: int = LIMIT()


class ExplainRequest(CommandRecord):
    """Draw what kernels do with memory: blocks, warps, stages, banks, bytes. No GPU is needed.

    The ladder from the naive kernel to a tuned one, winners that ship, and any config, in one HTML file.

    Examples:
        explain --shape 4096
        explain --gpu rtx-4090 --shape 4096 --config bm=64,min_blocks=1
        explain --shape 4096:NT --config vec_b=1 --out mine.html"""

    out: Path = option("The HTML file to write.", Path("tiles.html"))
    gpu: str = option("A known GPU model, as h200 or rtx-3090.", "h200", known_gpus)
    shape: str = SHAPE()
    configs: list[str] = option(
        "A config to draw first: bm=64,bn=128,... or JSON; repeatable.", [], flag="--config", metavar="CONFIG"
    )


class BenchRequest(CommandRecord):
    """Time the best known kernels against cuBLAS.

    Examples:
        bench
        bench --db shapes.db --shape 4096 --rounds 50"""

    gpu: str = GPUS()
    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    rounds: int = ROUNDS()
    cache: str = CACHE()
    max_error: float | None = ACCURATE()
    db: str = DB()


class TimeRequest(CommandRecord):
    """Verify and time configs by hand, against cuBLAS. Nothing is stored.

    Examples:
        time bm=128,min_blocks=2 --shape 4096
        time bm=64 bm=64,stages=2 --shape 2048x4096x4096 --rounds 30"""

    config: list[str] = argument(
        "bm=64,bn=128,... or JSON; what is not named has its default.", metavar="CONFIG..."
    )
    gpu: str = GPU()
    shape: str = SHAPE()
    rounds: int = ROUNDS()
    cache: str = CACHE()
    max_error: float | None = LARGEST_ERROR()


class SourceRequest(CommandRecord):
    """Write what a config is compiled from, and the command that compiles it.

    Examples:
        source bm=128,min_blocks=1 --gpu rtx-4090 --out sgemm.cu
        source bm=64"""

    config: str = argument("bm=64,bn=128,... or JSON.", metavar="CONFIG")
    gpu: str = option(
        "A known GPU model, as h200 or rtx-3090, or one here (index, UUID, `auto`).", "h200", known_gpus
    )
    shape: str = option("Its layout counts, and whether it is a batch.", "4096")
    out: Path | None = option("The .cu file to write; without it, it is printed.", None)


class LadderRequest(CommandRecord):
    """Time the classic steps beside the tuned kernel and cuBLAS.

    Examples:
        ladder --shape 4096
        ladder --shape 4096 --json"""

    gpu: str = REAL_GPU()
    shape: str = option("4096 or 4096x128x4096 (m, n, k); NN only.", "4096")
    rounds: int = ROUNDS(default=9)
    cache: str = CACHE()
    max_error: float | None = ACCURATE()
    db: str = DB()


class VerifyRequest(CommandRecord):
    """Check an exported folder on this GPU.

    Examples:
        verify
        verify my_kernels --gpu 1
        verify --quick"""

    table: Path = FOLDER()
    gpu: str = option(
        "A GPU: its index, UUID or `auto`; `none` checks the files alone.", "auto", words("auto", "none")
    )
    is_quick: bool = option(
        "One kernel alone: its result, and its time against the recorded one.", False, flag="--quick"
    )


class WorkerRequest(CommandRecord):
    """Serve the queue of a database: tune what is asked for, on GPUs of this machine, or compile for others.

    A process for each GPU, and one that compiles. It ends in order on SIGTERM or Ctrl-C: what was measured
    is stored, and another worker goes on.

    Examples:
        worker --gpu all --db postgresql://autotune@host/autotune
        worker --compile 16 --db postgresql://autotune@host/autotune
        worker --gpu 0 --drain --db shapes.db"""

    gpu: str = option(
        "GPUs: `all`, `0,1`, an index, a UUID, a model as h100; or `replay:FILE`. Without it, none.", "",
        words("all", "auto", "replay:"),
    )  # fmt: skip
    num_compilers: int = option(
        "Compile so many kernels at a time for GPU workers elsewhere.", 0, whole(0, 1024), flag="--compile",
        metavar="NUMBER",
    )  # fmt: skip
    like: str | None = option(
        "Accept this GPU as another of the same compute capability, as `search` does.", None, known_gpus,
        metavar="GPU",
    )  # fmt: skip
    seconds: float = option("For each request, at most.", 120.0, number(is_above=True))
    effort: str = option("As of `search`.", "standard", words("quick", "standard", "thorough"))
    cache: str = CACHE()
    max_error: float | None = LARGEST_ERROR()
    db: str = DB()
    drains: bool = option("End once nothing waits.", False, flag="--drain")
    max_kernels: int = PUBLISHED_KERNELS()
    key: Path | None = option(
        "Also publish a table of what was tuned, as `tables follow` does, signed by this private key.", None,
        metavar="FILE",
    )  # fmt: skip
    server: str | None = PUBLISHED_TO()
    cluster: str | None = CLUSTER()


class RecordRequest(CommandRecord):
    """Time configs on shapes into a file for --gpu replay:FILE.

    Examples:
        record --shape 4096 --configs 3000 --out space.json.gz
        record --suite shapes.toml --seconds 200 --out space.json.gz"""

    out: Path = option("The recording to write; asked again, it goes on.")
    gpu: str = REAL_GPUS()
    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    configs: int | None = option(
        "A sample of so many configs, the same for all shapes; all without it.", None, whole(1, 10**6)
    )
    seconds: float | None = option("Begin no other config after so many seconds.", None, number(0, 1e9))
    seed: int = SEED()
    cache: str = CACHE()
    max_error: float | None = LARGEST_ERROR()
    db: str | None = option(
        "Database of its trials, and of searches to sample from; OUT.db without it.", None
    )


class ContributeRequest(CommandRecord):
    """Measure a card for those who have none: one run of ten minutes, one file to give away.

    Cards wanted most: RTX 3090, RTX 4090 and Quadro RTX (4000 to 8000). It says what the file holds before it
    writes: names of users and hosts, paths and UUIDs never. Ctrl-C keeps all; asked again, it goes on.

    Examples:
        contribute
        contribute --gpu 1 --seconds 1200 --out rtx-3090.json.gz"""

    gpu: str = REAL_GPU()
    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    seconds: float = option("Of the whole run.", 600.0, number(0, 1e9, is_above=True))
    out: Path | None = option("The file to write; without it, it is named as the GPU.", None)


class DoctorRequest(CommandRecord):
    """Tell what is here, what is missing, what to do.

    Examples:
        doctor
        doctor --db shapes.db --json"""

    db: str = DB()


class KeyRequest(CommandRecord):
    """Make a key that tables are signed with: a private one, and FILE.pub for programs and servers.

    Examples:
        tables key team.key"""

    out: Path = argument("The new file of the private key.", metavar="FILE")


class PublishRequest(CommandRecord):
    """Verify an exported folder, sign its tables and publish them.

    Examples:
        tables publish sgemm_dispatch --key team.key
        tables publish --key team.key --server https://tune.example.com
        tables publish --key team.key --gpu none"""

    key: Path = option("The private key (`tables key`).", metavar="FILE")
    table: Path = FOLDER()
    gpu: str = option(
        "A GPU to verify all kernels on: the tables for it are published; `none`: the files alone are "
        "verified, of all tables.",
        "auto", words("auto", "none"),
    )  # fmt: skip
    db: str = DB()
    server: str | None = SERVER()


class FollowRequest(CommandRecord):
    """Publish a table whenever a request of the queue was tuned, with nobody at it.

    Of one GPU model it exports the winners, verifies and signs them. Ctrl-C ends it.

    Examples:
        tables follow --key team.key --gpu 0 --db postgresql://autotune@db/autotune
        tables follow --key team.key --gpu none --gpu-name 'NVIDIA H200'"""

    key: Path = option("The private key (`tables key`).", metavar="FILE")
    gpu: str = option(
        "A GPU to verify all kernels on, whose model it is; `none`: the files alone are verified.", "auto",
        words("auto", "none"),
    )  # fmt: skip
    gpu_name: str = option("The GPU model, with --gpu none.", "")
    max_kernels: int = PUBLISHED_KERNELS()
    seconds: float = option("Between two looks at the queue.", 5.0, number(0.05, 3600))
    is_once: bool = option("End when all is published that was tuned so far.", False, flag="--once")
    db: str = DB()
    server: str | None = PUBLISHED_TO()


class TablesRequest(CommandRecord):
    """The tables that were published, the newest last.

    Examples:
        tables list
        tables list --server https://tune.example.com --json"""

    db: str = DB()
    server: str | None = SERVER()


class PullRequest(CommandRecord):
    """Write a published table as a folder to import.

    Examples:
        tables pull 3f9a --out sgemm_dispatch --trust team.key.pub"""

    address: str = ADDRESS()
    out: Path = option("The folder to write: what applications import.", TABLE)
    trusted: list[str] = TRUSTED()
    db: str = DB()
    server: str | None = SERVER()


class PinRequest(CommandRecord):
    """Have programs take a table, whatever is published later.

    Examples:
        tables pin 3f9a
        tables pin 3f9a --off"""

    address: str = ADDRESS()
    is_off: bool = option("From now on the newest one again.", False, flag="--off")
    db: str = DB()
    server: str | None = SERVER()


class RollbackRequest(CommandRecord):
    """Take a table back: programs return to what was published before.

    Examples:
        tables rollback 3f9a"""

    address: str = ADDRESS()
    db: str = DB()
    server: str | None = SERVER()


class NewTokenRequest(CommandRecord):
    """Make a token for a server, and print it once: only its SHA-256 is kept.

    Roles: `read` sees pages and tables, `request` also names shapes and tells how calls were served, `work`
    also sends signed tables, `publish` sends them, pins them and takes them back.

    Examples:
        tokens new laptop --role read
        tokens new training --role request"""

    name: str = argument("Whose it is.", metavar="NAME")
    roles: list[str] = option(
        "`read`, `request`, `work` or `publish`; repeatable.", ["read"],
        one_of("read", "request", "work", "publish"), flag="--role",
    )  # fmt: skip
    db: str = DB()


class TokensRequest(CommandRecord):
    """Names and roles of all tokens.

    Examples:
        tokens list"""

    db: str = DB()


class RevokeRequest(CommandRecord):
    """End a token; a server knows it within seconds.

    Examples:
        tokens revoke laptop"""

    name: str = argument("Whose it is.", metavar="NAME")
    db: str = DB()


class ServeRequest(CommandRecord):
    """Serve a team: requests for shapes, tables, workers, pages and metrics, on one database and one port.

    This machine alone is answered unless --host says otherwise; then everybody needs a token (`tokens new`),
    and either a certificate or a proxy that has one.

    Examples:
        serve
        serve --db postgresql://autotune@db/autotune --trust team.key.pub
        serve --host 0.0.0.0 --certificate a.pem --certificate-key k.pem
        serve --host 10.0.0.5 --name tune.example.com --behind-proxy"""

    db: str = DB()
    port: int = PORT(default=8571)
    host: str = HOST()
    names: list[str] = option(
        "A name that others call this server by; repeatable.", [], flag="--name", metavar="NAME"
    )
    certificate: Path | None = option("Its certificate, with those that vouch for it.", None, metavar="FILE")
    certificate_key: Path | None = option("The key of the certificate.", None, metavar="FILE")
    is_behind_proxy: bool = option("A proxy before it has the certificate.", False, flag="--behind-proxy")
    trusted: list[str] = TRUSTED()
    is_read_only: bool = option(
        "Nothing is changed: a role of the database that only reads is enough.", False, flag="--read-only"
    )
    rate: float = option("Requests a second of one client.", 500.0, number(0.1, 1e6))


class AskRequest(CommandRecord):
    """Ask for shapes: workers tune what promises most first.

    Examples:
        requests add --shape 4096 --calls 1000 --gpu-name h100
        requests add --suite calls.json --server https://tune.example.com"""

    shapes: list[str] = SHAPES()
    suites: list[Path] = SUITES()
    calls: int = option("How often programs call for each --shape.", 1, whole(1))
    gpu_name: str = option("For GPUs of this model; without it, for any.", "")
    db: str = DB()
    server: str | None = SERVER()


class QueueRequest(CommandRecord):
    """The queue: what is open, the most promising first, then what ended.

    Examples:
        requests list
        requests list --server https://tune.example.com --limit 50"""

    limit: int = LIMIT()
    db: str = DB()
    server: str | None = SERVER()
