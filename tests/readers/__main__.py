"""Tries each catalog; status 1 if a read was torn where several tables change at once.

    python -m readers [--reads 10000] [--kills 50] [--catalogs rest,sqlite] [--store files]
                      [--readers spark,pyiceberg,duckdb] [--format-version 3]

Takes servers of its own. Each catalog gets all reads and kills. The last line is JSON: the reads of
the catalogs that change several tables at once, of which none may be torn. Where one table changes
after the other, the lines above say how many were, and for how long.

`--store moto` and `--store seaweedfs` keep the files of `--catalogs rest` in a server that speaks
S3.

SeaweedFS's own catalog takes Parquet files and no deletion vectors: `--catalogs seaweedfs
--format-version 2`.

`--catalogs polaris` needs an Apache Polaris, such as 1.4.1: `TWOFOLD_POLARIS` is the folder of its
`quarkus-run.jar`. `--catalogs lakekeeper` needs a Lakekeeper, such as 0.11.6: `TWOFOLD_LAKEKEEPER`
is its program.

Trino is a fourth reader, of REST catalogs and format 2. It is a download of 821 MB, and needs Java
24: `--readers trino --catalogs rest --format-version 2`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from fixtures import lakekeeper, polaris
from helpers.spark import class_archive
from helpers.spark.ground import jobs_ground
from helpers.spark.writer import Writer
from readers.places import KINDS, STORES, opened_place
from readers.programs import KNOWN_READERS, READERS, make_reader
from readers.tally import Outcome, summarize
from readers.trial import try_catalog


def main() -> int:
    options = _parse()
    outcomes: list[Outcome] = []
    in_s3 = options.store != "files" or bool({"seaweedfs", "lakekeeper"} & set(options.catalogs))
    class_archive.make(s3=in_s3)  # for the drivers, which are started once more than they are killed
    with jobs_ground(memory="1g", s3=in_s3) as ground:
        for kind in options.catalogs:
            writer = Writer(ground.bootstrap, ground.registry, kind)
            outcomes.append(_try(kind, ground.spark, writer, ground.folder / kind, options))
            print(outcomes[-1].describe(), flush=True)
    last = summarize(outcomes, options.readers)
    print(json.dumps(last))
    return 1 if last["torn"] else 0


def _try(kind: str, spark: SparkSession, writer: Writer, folder: Path, options: argparse.Namespace) -> Outcome:
    with ExitStack() as ending:
        lake, tables, arguments = ending.enter_context(opened_place(kind, options.store, spark, writer, folder))
        lake.format_version, lake.write_mode = options.format_version, "merge-on-read"  # the harder one to read
        made = ("--format-version", str(options.format_version), "--write-mode", "merge-on-read")
        arguments = (*arguments, *made)
        readers = [make_reader(name, lake, tables, ending) for name in options.readers]
        return try_catalog(lake, tables, readers, options=arguments, reads=options.reads, kills=options.kills)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m readers")
    parser.add_argument("--reads", type=int, default=10_000, help="reads of each catalog, at least (10000)")
    parser.add_argument("--kills", type=int, default=50, help="kill -9 of each catalog's mirror (50)")
    parser.add_argument("--catalogs", type=_choose(KINDS), default=["rest", "sqlite"], help=",".join(KINDS))
    parser.add_argument("--store", choices=STORES, default="files", help="of the tables in a catalog `rest` (files)")
    parser.add_argument("--readers", type=_choose(KNOWN_READERS), default=list(READERS), help=",".join(KNOWN_READERS))
    parser.add_argument("--format-version", type=int, choices=(2, 3), default=3, help="of the tables (3)")
    options = parser.parse_args()
    if "seaweedfs" in options.catalogs and options.format_version != 2:
        parser.error("seaweedfs refuses the Puffin files of deletion vectors in its tables: add --format-version 2")
    if "polaris" in options.catalogs and not polaris.FOLDER:
        parser.error("polaris needs Apache Polaris: set TWOFOLD_POLARIS to the folder of its quarkus-run.jar")
    if "lakekeeper" in options.catalogs and not lakekeeper.PROGRAM:
        parser.error("lakekeeper needs a Lakekeeper: set TWOFOLD_LAKEKEEPER to its program")
    if options.store != "files" and options.catalogs != ["rest"]:
        parser.error(f"--store {options.store} is for one kind of catalog: add --catalogs rest")
    plain = options.store == "files" and not {"sqlite", "seaweedfs", "polaris", "lakekeeper"} & set(options.catalogs)
    if "trino" in options.readers and (not plain or options.format_version != 2):
        parser.error("trino reads files of this machine, in format 2: add --catalogs rest --format-version 2")
    return options


def _choose(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of words with commas, of these."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        if unknown := set(words) - set(known):
            raise argparse.ArgumentTypeError(f"{','.join(sorted(unknown))}: choose from {', '.join(known)}")
        return words

    return parse


if __name__ == "__main__":
    sys.exit(main())
