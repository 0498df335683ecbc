"""Make the training lists of `recipes/mini.toml` that no file holds as they are.

    MNEMORANK_DATA=/path/to/data python research/mini_data /path/to/lists

Reads 2WikiMultiHopQA, SQuAD, MultiHop-RAG, RealMem and the training questions of LongMemEval-S from MNEMORANK_DATA and
writes, in the `lists` format: wiki, bridge, ict, title (paragraphs), lme, reply, said (dialogue), synth (dated facts by
template), passages, articles, personas, hops, decoys, conversations, threads (what we wrote ourselves, in `own/`;
NAME-none has the questions that nothing answers, NAME-dev is kept to choose by, NAME-test to measure on), asked,
asked-pairs, asked-articles, asked-news, asked-sessions, asked-turns (questions we wrote about texts of the data) and
realmem (fewer wrong memories a list). The same seed gives the same files.

    MNEMORANK_DATA=/path/to/data python research/mini_data /path/to/lists --hard-for MODEL

adds `hard` to them: lists with the wrong memories that MODEL (a name or a folder) ranks highest. `--closer-for MODEL`
adds `closer`: lists of the excerpts of two sentences that MODEL finds best in right and wrong texts. `--taught-by
FOLDER` adds `squad-taught` and others: lists with the scores of an encoder, for the loss `kl`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import agent_questions as asked
import agent_texts as written
import best_excerpts as closer
import dated_facts as dates
import distillation as taught
import hard_negatives as hardest
import longmemeval as dialogue
import narrowed
import wiki_paragraphs as paragraphs
from lists import MadeList

from mnemorank.data.formats import open_for_writing


def write(folder: Path, name: str, lists: list[MadeList]) -> None:
    path = folder / f"{name}.jsonl.gz"
    with open_for_writing(path) as stream:
        for number, made in enumerate(lists):
            record = {"id": str(number), "query": made.query, "source": name, "candidates": made.candidates()}
            if not made.right:
                record["answerable"] = False
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"{path}: {len(lists)} lists")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="the most lists of each kind, for trying it out")
    parser.add_argument(
        "--hard-for", metavar="MODEL", help="add the lists that are hard for a model to those made before"
    )
    parser.add_argument("--closer-for", metavar="MODEL", help="add the excerpts that a model finds best")
    parser.add_argument("--taught-by", metavar="FOLDER", help="add lists with the scores of an encoder as teacher")
    arguments = parser.parse_args()
    data = Path(os.environ["MNEMORANK_DATA"])
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, maker, model in (("hard", hardest, arguments.hard_for), ("closer", closer, arguments.closer_for)):
        if model:
            lists = maker.make(arguments.output, data, model, random.Random(arguments.seed))
            write(arguments.output, name, lists[: arguments.limit])
    if arguments.taught_by:
        for name, lists in taught.make(arguments.output, data, arguments.taught_by, arguments.limit).items():
            write(arguments.output, name, lists)
    if arguments.hard_for or arguments.closer_for or arguments.taught_by:
        return
    made = {"synth": dates.make(20000, random.Random(5))}
    made |= dialogue.make(data / "longmemeval" / "longmemeval_s_train.json.gz", random.Random(arguments.seed))
    made |= written.make(random.Random(arguments.seed))
    made["realmem"] = narrowed.make(data / "lists" / "realmem.train.jsonl.gz", random.Random(arguments.seed))
    made["asked-news"] = asked.of_news(data / "lists" / "multihoprag.train.jsonl.gz", random.Random(arguments.seed))
    made["asked-articles"] = asked.of_articles(data / "lists" / "squad.train.jsonl.gz", random.Random(arguments.seed))
    made["asked-turns"] = asked.of_memories(data / "lists" / "realmem.train.jsonl.gz", random.Random(arguments.seed))
    made |= paragraphs.make(data / "2wiki" / "2wikimultihop.json.gz", random.Random(arguments.seed))
    for name, lists in made.items():
        write(arguments.output, name, lists[: arguments.limit])


if __name__ == "__main__":
    main()
