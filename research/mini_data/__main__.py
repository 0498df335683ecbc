"""Make the training lists of `mini.toml` that are not files of a public data set.

    MNEMORANK_DATA=/path/to/data python research/mini_data /path/to/lists

reads 2WikiMultiHopQA, SQuAD, MultiHop-RAG, RealMem and the training questions of LongMemEval-S from MNEMORANK_DATA and
writes files in the `lists` format:

    wiki, bridge, ict, title                        paragraphs of 2WikiMultiHopQA
    lme, reply, said                                chats of LongMemEval
    synth                                           dated facts from templates
    passages, articles, personas, hops, decoys,
    conversations, threads                          texts written by agents (`data/`); NAME-none has the questions
                                                    without an answer, NAME-dev and NAME-test are held out
    questions, questions-pairs, questions-articles,
    questions-news, questions-sessions,
    questions-turns                                 questions written by agents about public texts
    realmem                                         RealMem with fewer negatives per list

The same seed gives the same files. Once they exist,

    --hard-for MODEL        adds `hard`: lists with the negatives that MODEL ranks highest
    --excerpts-for MODEL    adds `excerpts`: the excerpts of two sentences that MODEL scores highest in each text
    --teacher FOLDER        adds `squad-distilled` and others: lists with the scores of an encoder, for the loss `kl`
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path

import agent_questions
import agent_texts
import best_excerpts
import dated_facts
import distillation
import hard_negatives
import longmemeval
import wiki_paragraphs
from lists import Fields, TrainingList, narrow_lists

from mnemorank.data.formats import open_for_writing

SYNTHETIC_LISTS, SYNTHETIC_SEED = 20000, 5


def write_lists(folder: Path, name: str, lists: list[TrainingList]) -> None:
    path = folder / f"{name}.jsonl.gz"
    with open_for_writing(path) as stream:
        for number, made in enumerate(lists):
            record: Fields = {"id": str(number), "query": made.query, "source": name, "candidates": made.candidates()}
            if not made.positives:
                record["answerable"] = False
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"{path}: {len(lists)} lists")


def make_lists(data: Path, seed: int) -> dict[str, list[TrainingList]]:
    """Make all lists that need no model."""
    squad, realmem = data / "lists" / "squad.train.jsonl.gz", data / "lists" / "realmem.train.jsonl.gz"
    news = data / "lists" / "multihoprag.train.jsonl.gz"
    return {
        "synth": dated_facts.make(SYNTHETIC_LISTS, random.Random(SYNTHETIC_SEED)),
        **longmemeval.make(data / "longmemeval" / "longmemeval_s_train.json.gz", random.Random(seed)),
        **agent_texts.make(random.Random(seed)),
        "realmem": narrow_lists(realmem, random.Random(seed)),
        "questions-news": agent_questions.make_news_lists(news, random.Random(seed)),
        "questions-articles": agent_questions.make_article_lists(squad, random.Random(seed)),
        "questions-turns": agent_questions.make_turn_lists(realmem, random.Random(seed)),
        **wiki_paragraphs.make(data / "2wiki" / "2wikimultihop.json.gz", random.Random(seed)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, help="the maximum number of lists per file, to try it out")
    parser.add_argument("--hard-for", metavar="MODEL", help="add lists that are hard for a model")
    parser.add_argument("--excerpts-for", metavar="MODEL", help="add lists of the excerpts that a model scores highest")
    parser.add_argument("--teacher", metavar="FOLDER", help="add lists with the scores of an encoder")
    arguments = parser.parse_args()
    output, seed, limit = arguments.output, arguments.seed, arguments.limit
    data = Path(os.environ["MNEMORANK_DATA"])
    output.mkdir(parents=True, exist_ok=True)
    made: dict[str, list[TrainingList]] = {}
    if arguments.hard_for:
        made["hard"] = hard_negatives.make(output, data, arguments.hard_for, random.Random(seed))
    if arguments.excerpts_for:
        made["excerpts"] = best_excerpts.make(output, data, arguments.excerpts_for, random.Random(seed))
    if arguments.teacher:
        made |= distillation.make(output, data, arguments.teacher, limit)
    if not (arguments.hard_for or arguments.excerpts_for or arguments.teacher):
        made = make_lists(data, seed)
    for name, lists in made.items():
        write_lists(output, name, lists[:limit])


if __name__ == "__main__":
    main()
