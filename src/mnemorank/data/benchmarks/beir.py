"""BEIR: a folder with corpus, queries and qrels, and perhaps a first-stage run; else BM25's top 100."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mnemorank._internal.jsonio import open_text, read_json_lines
from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.examples import Candidate, Example, text_of
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

POOL = 100
Qrels = dict[str, dict[str, float]]
Run = dict[str, dict[str, float]]


def files(folder: Path) -> list[Path]:
    """What of the folder is read."""
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a BEIR folder with corpus.jsonl, queries.jsonl and qrels/test.tsv")
    run = _optional(folder, "run.tsv", "run.trec", "run.txt")
    return [
        _one(folder, "corpus.jsonl"),
        _one(folder, "queries.jsonl"),
        _one(folder, "qrels/test.tsv", "qrels/dev.tsv", "qrels.tsv"),
        *([run] if run else []),
    ]


def read(folder: Path) -> Iterator[Example]:
    """The queries that have judgements, in file order, with the first stage's best as candidates.

    Judged documents that the first stage did not find are not added: `missing` has their labels. A document with the
    query's own id (ArguAna, Quora: the query itself) is no candidate, as BEIR's evaluation has it.
    """
    corpus_path, queries_path, qrels_path, *run_path = files(folder)
    qrels, top = _qrels(qrels_path)
    corpus = {text_of(record, "_id", where): _memory(record, where) for where, record in read_json_lines(corpus_path)}
    queries = {
        text_of(record, "_id", where): text_of(record, "text", where) for where, record in read_json_lines(queries_path)
    }
    asked = {name: query for name, query in queries.items() if name in qrels}
    if not asked:
        raise InputError(f"{qrels_path}: judges none of the queries of {queries_path}")
    run = _read_run(run_path[0]) if run_path else _bm25_run(asked, corpus)
    for name, query in asked.items():
        judged = {document: label / top for document, label in qrels[name].items()}
        others = [(document, score) for document, score in run.get(name, {}).items() if document != name]
        found = sorted(others, key=lambda entry: -entry[1])[:POOL]
        kept = {document: score for document, score in found if document in corpus}
        candidates = tuple(
            Candidate(corpus[document].with_score(score), judged.get(document, 0.0)) for document, score in kept.items()
        )
        yield Example(
            id=name,
            query=query,
            candidates=candidates,
            source=folder.name,
            missing=tuple(label for document, label in judged.items() if label > 0 and document not in kept),
        )


def _memory(record: Mapping[str, object], where: str) -> Memory:
    title, text = record.get("title") or "", record.get("text")
    if not isinstance(text, str) or not isinstance(title, str):
        raise InputError(f"{where}: text: expected a string, got {text!r:.60}")
    return Memory(f"{title}: {text}" if title else text, id=str(record["_id"]))


def _qrels(path: Path) -> tuple[Qrels, float]:
    """`query-id corpus-id score` a line, with a header; or TREC's four columns. Also the highest score."""
    qrels: Qrels = {}
    for where, parts in _columns(path):
        if len(parts) not in (3, 4):
            raise InputError(f"{where}: expected query-id, corpus-id and score, got {len(parts)} columns")
        query, document, score = parts[0], parts[-2], parts[-1]
        if score.lower() in ("score", "label") or query == document:
            continue
        qrels.setdefault(query, {})[document] = max(_number(score, where), 0.0)
    top = max((label for judged in qrels.values() for label in judged.values()), default=0.0)
    if top <= 0:
        raise InputError(f"{path}: no document is judged relevant")
    return {query: judged for query, judged in qrels.items() if any(judged.values())}, top


def _read_run(path: Path) -> Run:
    """A first-stage run: TREC's six columns, or query-id, corpus-id, score."""
    run: Run = {}
    for where, parts in _columns(path):
        if len(parts) not in (3, 6):
            raise InputError(f"{where}: expected TREC's 6 columns or query, document, score; got {len(parts)} columns")
        query, document, score = (parts[0], parts[2], parts[4]) if len(parts) == 6 else parts
        if score.lower() == "score":
            continue
        run.setdefault(query, {})[document] = _number(score, where)
    return run


def _columns(path: Path) -> Iterator[tuple[str, list[str]]]:
    with open_text(path) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                parts = line.strip().split("\t" if line.count("\t") >= 2 else None)
                yield f"{path}:{number}", [part.strip() for part in parts]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{where}: score: expected a number, got {text.strip()!r:.60}") from None


def _bm25_run(queries: Mapping[str, str], corpus: Mapping[str, Memory]) -> Run:
    from mnemorank.evaluation.baselines import search

    names = list(corpus)
    # One more, which may be the query itself.
    hits = search([memory.text for memory in corpus.values()], list(queries.values()), POOL + 1)
    return {query: {names[i]: score for i, score in found} for query, found in zip(queries, hits, strict=True)}


def _one(folder: Path, *names: str) -> Path:
    found = _optional(folder, *names)
    if found is None:
        raise InputError(f"{folder}: {' or '.join(names)} (plain, .gz or .zst) is missing")
    return found


def _optional(folder: Path, *names: str) -> Path | None:
    choices = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz", ".zst"))
    return next((path for path in choices if path.is_file()), None)


loaders.add(Loader("beir", "a BEIR folder: corpus, queries, qrels, perhaps a run", read, files))
