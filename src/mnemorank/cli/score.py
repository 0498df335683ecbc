"""`mnemorank score`: the relevance of single texts."""

from __future__ import annotations

import argparse

from mnemorank.cli.arguments import add_json, add_model

HELP = "score texts for a query, independently of each other"
EXAMPLE = "mnemorank score 'where does Ruby work now?' 'Ruby joined Aurora Labs' 'Ruby likes tea'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("texts", metavar="TEXT", nargs="+")
    add_model(parser)
    parser.add_argument("--instruction", metavar="TEXT", help="the instruction, for models that take one")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    from mnemorank import Reranker
    from mnemorank.cli.output import print_json, shorten, table, terminal_width

    with Reranker(arguments.model) as reranker:
        scores = reranker.score(arguments.query, arguments.texts, instruction=arguments.instruction)
    if arguments.json:
        print_json(
            {
                "query": arguments.query,
                "scores": [
                    {"index": index, "text": text, "relevance": score.relevance, "raw_score": score.raw_score}
                    for index, (text, score) in enumerate(zip(arguments.texts, scores, strict=True))
                ],
            }
        )
        return
    rows = [
        (_format(score.relevance), _format(score.raw_score), shorten(text, terminal_width() - 24))
        for text, score in zip(arguments.texts, scores, strict=True)
    ]
    print(table(rows, ("relevance", "raw", "text"), right=(0, 1)))


def _format(number: float | None) -> str:
    return "—" if number is None else f"{number:.3f}"
