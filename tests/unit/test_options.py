"""What the command line reads: every option of every command is given once, unless it adds up."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_here import run_here
from typer.testing import CliRunner

from autotune import tuning
from autotune.cli import requests
from autotune.cli.app import app
from autotune.facts.keywords import ConditionKeywords, ExportKeywords, SearchKeywords, keywords_of
from autotune.files.errors import UsageError
from autotune.suite import read_suite

ADDING = {"--shape", "--suite", "--where", "--epilogue", "--ladder", "--study", "--name", "--role", "--trust"}


def _commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)
        else:
            yield (*path, name), command


COMMANDS = dict(_commands(typer.main.get_command(app)))
OPTIONS = [
    (path, option)
    for path, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option" and not (option.is_flag and not option.secondary_opts)
]


def _fault(*arguments: str) -> Exception:
    done = CliRunner().invoke(app, arguments, standalone_mode=False)
    assert isinstance(done.exception, Exception), done.output
    return done.exception


@pytest.mark.every(4)
@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda value: getattr(value, "name", value))
def test_an_option_is_given_once_unless_it_adds_up(path: tuple[str, ...], option: Any) -> None:
    name = max(option.opts, key=len)
    twice = [name, *option.secondary_opts] if option.is_flag else [name, "1", f"{name}=2"]
    if option.multiple:
        assert name in ADDING or (path, name) == (("explain",), "--config")
        return
    found = _fault(*path, *twice)
    assert isinstance(found, UsageError)
    assert str(found) == f"{name} is given 2 times, and takes one value; give it once"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("search --trials x", "--trials is 'x', expected a whole number of 1 ... 2147483647"),
        ("search --trials 1.5", "--trials is '1.5', expected a whole number of 1 ... 2147483647"),
        ("search --trials " + "9" * 5000, "--trials is '999999999999...9999999999999', expected"),
        ("search --seconds soon", "--seconds is 'soon', expected a number: more than 0, and finite"),
        ("export-table --max-megabytes -1", "--max-megabytes is -1.0, expected a number: at least 0"),
        ("search --seconds nan", "--seconds is nan, expected a number: more than 0, and finite"),
        ("search --seed -1", "--seed is -1, expected a whole number of 0 ..."),
        ("bench --rounds 1", "--rounds is 1, expected a whole number of 3 ... 10000"),
        ("trials show x", "ID, as `autotune trials history` lists it, is 'x', expected a whole"),
        ("trials diff 1 0", "ID, as `autotune trials history` lists it, is 0, expected"),
        ("export-table --format d", "--format is 'd' (known are python, c)"),
        ("export-table --format pyton", "--format is 'pyton' (did you mean 'python'?)"),
        ("view --port 99999", "--port is 99999, expected a whole number of 0 ... 65535"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_in_our_words(arguments: str, message: str) -> None:
    found = _fault(*arguments.split())
    assert isinstance(found, UsageError) and str(found).startswith(message)


def test_a_fault_of_the_parser_names_its_command() -> None:
    found: Any = _fault("trials", "best", "--db")
    assert found.ctx.command_path.endswith("trials best")
    missing: Any = _fault("trials", "compare", "a.db")
    assert "'SECOND'" in missing.format_message()  # as its help has it


def test_switches_may_be_repeated() -> None:
    assert "Usage" in run_here("search", "--quiet", "--json", "--json", "--help").stdout


def _suite(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(f"[[shape]]\n{row}" for row in rows), encoding="utf-8")
    return path


def test_suites_add_up_with_their_counts(tmp_path: Path) -> None:
    one = _suite(tmp_path / "a.toml", "m = 4\nn = 4\nk = 4\ncount = 3", "m = 5\nn = 4\nk = 4\ncount = 1")
    other = _suite(tmp_path / "b.toml", "m = 4\nn = 4\nk = 4\ncount = 2")
    plain = _suite(tmp_path / "c.toml", "m = 6\nn = 4\nk = 4")
    assert {str(g): count for g, count in read_suite(one, other).items()} == {"4x4x4:NN": 5, "5x4x4:NN": 1}
    assert read_suite() == {}
    with pytest.raises(UsageError, match=r"a\.toml, .*c\.toml: some shapes have a count.*name those"):
        read_suite(one, plain)
    found = _fault("bench", "--gpu", "replay:nothing", "--suite", str(one), "--suite", str(tmp_path / "no"))
    assert "no suite at" in str(found)


def test_every_option_is_declared_once_as_a_field_of_a_record() -> None:
    """But for --version and --debug, and what `SWITCHES` adds to a command."""
    room = Path(requests.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in room.glob("*.py")}
    assert {name for name, text in texts.items() if "typer.Option" in text} == {"app.py", "parsing.py"}
    declared = {name for name in vars(requests) if name.endswith("Request")}
    named = re.findall(r"requests\.(\w+Request)", texts["app.py"])
    assert sorted(named) == sorted(declared)


@pytest.mark.parametrize(
    ("kind", "record", "function"),
    [
        (SearchKeywords, requests.SearchRequest, tuning.tune),
        (ExportKeywords, requests.ExportRequest, tuning.export_table),
        (ConditionKeywords, requests.SpaceRequest, tuning.space),
    ],
)
def test_what_python_and_the_command_line_share_is_declared_once(
    kind: Any, record: Any, function: Any
) -> None:
    """One text, type and default of each keyword: the function and its command are made of it."""
    taken, fields = (
        inspect.signature(function).parameters,
        {one.name: one for one in dataclasses.fields(record)},
    )
    for name, declared in keywords_of(kind).items():
        field = fields[name]
        default = (
            field.default if field.default is not dataclasses.MISSING else tuple(field.default_factory())
        )
        assert taken[name].default == default == declared.default
        help = field.metadata["declared"](name).help
        assert name == "gpu" or declared.help.partition("{")[0].rstrip(". ") in help  # commands take several
        assert f"        {name:16}{declared.help.partition('{')[0][:40]}" in function.__doc__
    with pytest.raises(TypeError, match="unexpected keyword argument 'secnds'"):
        function(*[4096] * (1 + (function is tuning.export_table)), secnds=3)
