"""Lists from questions we wrote about texts of the data: `own/asked.jsonl.gz` names a text by its hash.

A line is `{"about": KIND, "query": …, "of": [KEY, …]}`, the keys being those of what answers. Kinds: `paragraph` and
`pair` (2Wiki, a question that needs two), `article` (SQuAD's training articles), `news` (MultiHop-RAG), `session` (a
window of a LongMemEval session), `turn` (a turn of a chat over RealMem's memories, with its day in `at`). Texts of dev
questions are never asked about; of LongMemEval's, those under another name neither (see `dialogue`).
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agent_texts import OWN, dated
from lists import Fields, MadeList, Pool, near_and_some, records

from mnemorank.text.bm25 import bm25

WINDOW = 110  # words in a session's window
# Passages of one news article begin alike: with its title.
TITLE = 32

Asked = dict[str, Any]


def key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]


@cache
def read() -> dict[str, list[Asked]]:
    """What was asked, by kind."""
    found: dict[str, list[Asked]] = defaultdict(list)
    for asked in records(OWN / "questions.jsonl.gz"):
        found[asked["about"]].append(asked)
    return found


def known(asked: Sequence[Asked], texts: Iterable[str]) -> list[tuple[str, list[str], set[str]]]:
    """Of what was asked, that whose texts are there: the query, its texts, and those that answer the same words."""
    by_key = {key(text): text for text in texts}
    found = [one for one in asked if all(name in by_key for name in one["of"])]
    if asked and not found:
        raise ValueError(f"{len(asked)} questions about {asked[0]['about']}: none of their texts is in this data")
    answers: dict[str, set[str]] = defaultdict(set)
    for one in found:
        answers[one["query"].lower()] |= {by_key[name] for name in one["of"]}
    return [(one["query"], [by_key[name] for name in one["of"]], answers[one["query"].lower()]) for one in found]


def of_paragraphs(titled: Sequence[tuple[str, str]], rng: random.Random) -> dict[str, list[MadeList]]:
    """Of 2Wiki's paragraphs, title and text: wrong are the nearest to the question and to what answers it.

    Some paragraphs occur twice, written a little differently: those of one title are never right and wrong.
    """
    asked = read()
    texts = [f"{title}: {text}" for title, text in titled]
    title_of = dict(zip(texts, (title for title, _ in titled), strict=True))
    pool = Pool(texts)
    return {
        "asked": _of_pool(asked["paragraph"], title_of, pool, rng, near=2),
        "asked-pairs": _of_pool(asked["pair"], title_of, pool, rng, near=1),
    }


def of_articles(path: Path, rng: random.Random) -> list[MadeList]:
    """Wrong are paragraphs of the same article: most of them near in words."""
    articles: dict[str, dict[str, None]] = defaultdict(dict)
    for record in records(path):
        articles[record["group"]] |= {each["text"]: None for each in record["candidates"]}
    article_of = {text: list(texts) for texts in articles.values() for text in texts}
    made = []
    for query, right, answers in known(read()["article"], article_of):
        others = [text for text in article_of[right[0]] if text not in answers]
        wrong = [others[i] for i in near_and_some(query, others, 6, 2, rng)]
        made.append(_some_dated(MadeList(query, right[:1], wrong), 1 / 6, rng))
    return made


def of_news(path: Path, rng: random.Random) -> list[MadeList]:
    """Wrong are passages of the same article, and of others the nearest to the question."""
    texts: dict[str, Fields] = {}
    for record in records(path):
        texts |= {
            each["text"]: {k: v for k, v in each.items() if k in ("text", "occurred_start")}
            for each in record["candidates"]
        }
    articles: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        articles[text[:TITLE]].append(text)
    pool = Pool(list(texts))
    made = []
    for query, right, answers in known(read()["news"], texts):
        article = [text for text in articles[right[0][:TITLE]] if text not in answers]
        rng.shuffle(article)
        wrong = [*article[:4], *pool.hard(query, {*answers, *article}, 1, 6, rng)]
        shown = [(texts[t] if rng.random() < 0.5 else t) for t in (right[0], *wrong)]
        made.append(MadeList(query, shown[:1], shown[1:]))
    return made


def of_sessions(sessions: Iterable[Sequence[str]], rng: random.Random) -> list[MadeList]:
    """Wrong are other windows of the session, unless they share lines with the right one, and of other sessions.

    :param sessions: each as the texts of its windows.
    """
    own = {text: windows for windows in sessions for text in windows}
    pool = Pool(list(own))
    made = []
    for query, right, answers in known(read()["session"], own):
        lines = set(right[0].split("\n"))
        beside = [text for text in own[right[0]] if not lines & set(text.split("\n"))]
        rng.shuffle(beside)
        wrong = [*beside[:2], *pool.hard(query, {*own[right[0]], *answers}, 3, 10, rng)]
        made.append(_some_dated(MadeList(query, right[:1], wrong), 1 / 6, rng))
    return made


def of_memories(path: Path, rng: random.Random, wrong: int = 8) -> list[MadeList]:
    """Turns over a person's memories: wrong are those of the person noted by then, most of them near in words."""
    memories: dict[str, dict[str, Fields]] = defaultdict(dict)
    for record in records(path):
        for each in record["candidates"]:
            fields = {k: v for k, v in each.items() if k != "label"}
            kept = memories[record["group"]].setdefault(key(each["text"]), fields)
            if fields["occurred_start"] < kept["occurred_start"]:  # noted again later
                memories[record["group"]][key(each["text"])] = fields
    made = []
    for asked in read()["turn"]:
        person = next((own for own in memories.values() if asked["of"][0] in own), None)
        if person is None:
            continue
        known = {name: own for name, own in person.items() if own["occurred_start"] <= asked["at"]}
        others = [own for name, own in known.items() if name not in asked["of"]]
        shared = bm25(asked["query"], [own["text"] for own in others])
        near = [others[i] for i in (-shared).argsort(kind="stable")[: wrong * 2]]
        far = [own for own in others if own not in near]
        chosen = [*rng.sample(near, min(wrong - 2, len(near))), *rng.sample(far, min(2, len(far)))]
        made.append(MadeList(asked["query"], [known[name] for name in asked["of"] if name in known], chosen))
    return [one for one in made if one.right and one.wrong]


def _of_pool(
    asked: Sequence[Asked], title_of: dict[str, str], pool: Pool, rng: random.Random, near: int, most: int = 5
) -> list[MadeList]:
    found = known(asked, title_of)
    tops = pool.top([query for query, _, _ in found], 14)
    likes = pool.top([right[0] for _, right, _ in found], 10)
    made = []
    for (query, right, answers), top, like in zip(found, tops, likes, strict=True):
        titles = {title_of[text] for text in answers}
        near_query, near_right = (
            [text for text in (pool.texts[i] for i in best) if title_of[text] not in titles] for best in (top, like)
        )
        wrong = rng.sample(near_query[:8], min(most - near, len(near_query[:8])))
        others = [text for text in near_right if text not in wrong][:4]
        wrong += rng.sample(others, min(near, len(others)))
        made.append(_some_dated(MadeList(query, right, wrong), 1 / 6, rng))
    return made


def _some_dated(made: MadeList, share: float, rng: random.Random) -> MadeList:
    return dated(made, rng) if rng.random() < share else made
