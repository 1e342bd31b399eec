"""Published data sets to verl's parquet schema: `python -m trainer.data.prepare gsm8k --input DIR --output DIR`.

    data_source  prompt [{role, content}]  ability  reward_model {style, ground_truth}
    extra_info {split, index, question, answer}

Needs neither torch nor transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer import own_files
from trainer.commands import Parser, outcome, output
from trainer.data.recipes import RECIPES, BadRecordError, Recipe
from trainer.data.sources import SPLITS, Source, find_sources
from trainer.errors import ConfigError, DataError


def prepare(
    task: str,
    inputs: Sequence[str],
    output: str | Path,
    *,
    split: str | None = None,
    limit: int | None = None,
    search: bool = False,
) -> list[Path]:
    """Writes `output`/train.parquet and `output`/test.parquet, those of the two that `inputs` hold, and gives their
    paths.

    An input is a JSON-lines file, a folder of them or a hub data set's name. `split` says which one the inputs are,
    where their names don't; of a folder it chooses the files. `limit` keeps the first rows of each split. `search`
    asks as Search-R1 does.
    Raises DataError, with file and line, for a record that can't be used; ConfigError for a wrong argument.
    """
    recipe = RECIPES[task]
    if search:
        if not recipe.is_question:
            known = ", ".join(name for name, each in RECIPES.items() if each.is_question)
            raise ConfigError(f"there is nothing to search for in {task}", hint=f"--search is for: {known}")
        recipe = recipe.for_search()
    sources = find_sources(inputs, recipe, split)
    written = []
    for name in SPLITS:
        chosen = [source for source in sources if source.split == name]
        if chosen:
            rows = list(itertools.islice(_rows(recipe, chosen, name), limit))
            if not rows:
                raise DataError(f"no records in {', '.join(s.name for s in chosen)}", hint="is the file complete?")
            path = Path(output).expanduser() / f"{name}.parquet"
            _write(path, pa.Table.from_pylist(rows, schema=recipe.schema))
            written.append(path)
    return written


def _rows(recipe: Recipe, sources: Sequence[Source], split: str) -> Iterator[dict[str, Any]]:
    records = (entry for source in sources for entry in source.records())
    for index, (where, record) in enumerate(records):
        try:
            yield recipe.row(record, split, index)
        except BadRecordError as exc:
            raise DataError(f"{where}: {exc}", hint=recipe.hint) from exc


def _write(path: Path, table: pa.Table) -> None:
    """Beside, then renamed: nobody sees half a file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with own_files.new(temporary) as file:
            pq.write_table(table, file)
        os.replace(temporary, path)
    except OSError as exc:
        raise DataError(f"{path} can't be written: {exc.strerror or exc}", hint="choose another --output") from exc
    finally:
        temporary.unlink(missing_ok=True)


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"must be from 1 to {sys.maxsize}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m trainer.data.prepare", description="Writes verl's parquet files.")
    parser.add_argument("task", choices=sorted(RECIPES))
    parser.add_argument(
        "--input",
        action="append",
        metavar="FILE|DIR|HUB_ID",
        help="JSON-lines file or folder of them, as published; may be repeated; default: the data set on the hub",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="train.parquet and test.parquet go here")
    parser.add_argument("--split", choices=SPLITS, help="format of the input [default: detected from the file name]")
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows of each split")
    parser.add_argument("--search", action="store_true", help="Search-R1's prompt, for a model that may search")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of errors")
    return parser


def _summary(path: Path) -> str:
    file = pq.ParquetFile(path)
    row = next(file.iter_batches(1)).to_pylist()[0]
    sample = {name: row[name] for name in ("data_source", "prompt", "reward_model")}
    return f"{path}: {file.metadata.num_rows} rows, such as\n  {json.dumps(sample, ensure_ascii=False)}"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 written, 2 wrong command or data."""
    return outcome(lambda: command(argv), verbose="--verbose" in (sys.argv[1:] if argv is None else argv))


def command(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    inputs = args.input or [RECIPES[args.task].hub_id]
    for path in prepare(args.task, inputs, args.output, split=args.split, limit=args.limit, search=args.search):
        with output():
            sys.stdout.write(f"{_summary(path)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
