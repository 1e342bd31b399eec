"""`python -m trainer.retrieval --corpus FILE [--host 127.0.0.1] [--port 8000] [--topk 3]`: a server of one corpus.

One line on stdout says where it listens, once it does. SIGTERM and Ctrl-C end it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from trainer.commands import Parser, outcome
from trainer.errors import ConfigError
from trainer.retrieval import bm25, corpus
from trainer.retrieval.client import TOPK
from trainer.retrieval.meeting import count

PORT = 8000  # Search-R1's
MANY = 1_000_000  # passages whose index takes so long that it is worth a word


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m trainer.retrieval", description="Passages of a corpus by BM25, over HTTP.")
    parser.add_argument("--corpus", required=True, metavar="FILE", help="JSON lines with id and contents")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: other nodes may ask, without a password")
    parser.add_argument("--port", type=int, default=PORT, help=f"{PORT} by default; 0: one that is free")
    parser.add_argument("--topk", type=int, default=TOPK, help="passages of a request that does not say how many")
    return parser.parse_args(argv)


def serve(options: argparse.Namespace) -> int:
    """Until it is ended. Raises TrainerError: the corpus or the address is not to be had, bm25s is not installed."""
    from trainer.retrieval.server import MOST_TOPK, Server, bind, url_of

    if not 1 <= options.topk <= MOST_TOPK:
        raise ConfigError(f"--topk {options.topk}: out of range", hint=f"give a number from 1 to {MOST_TOPK}")
    bm25.library()
    with bind(options.host, options.port) as listener:  # what is wrong with it shows before an hour of indexing
        read = corpus.read(options.corpus)
        if len(read) > MANY:
            print(f"note: indexing {count(len(read))} takes minutes", file=sys.stderr)
        index = bm25.Index(read)
        url = url_of(listener, options.host)
        held = f"{count(len(index.corpus))} of {index.corpus.name}, digest {index.corpus.digest}"

        def ready() -> None:
            print(f"retriever at {url}: {held}, indexed in {index.seconds:.1f} s", flush=True)

        async def run() -> None:
            end, loop = asyncio.Event(), asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end.set)
            await Server(index, options.topk).run(listener, ready, end)

        asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(outcome(lambda: serve(parse(None))))
