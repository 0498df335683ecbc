"""BEIR: a folder with corpus, queries and qrels. Candidates are those of a run file, or the top 100 of BM25."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mnemorank._internal.jsonio import open_text
from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.records import Record, read_lines
from mnemorank.data.retrieval import StemmedBM25
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

POOL_SIZE = 100
Qrels = dict[str, dict[str, float]]
Run = dict[str, dict[str, float]]


def files(folder: Path) -> list[Path]:
    """Return the files of the folder that are read."""
    if not folder.is_dir():
        raise InputError(
            "expected a BEIR folder with corpus.jsonl, queries.jsonl and qrels/test.tsv", location=str(folder)
        )
    run = _find_optional(folder, "run.tsv", "run.trec", "run.txt")
    return [
        _find(folder, "corpus.jsonl"),
        _find(folder, "queries.jsonl"),
        _find(folder, "qrels/test.tsv", "qrels/dev.tsv", "qrels.tsv"),
        *([run] if run else []),
    ]


def read(folder: Path) -> Iterator[Example]:
    """Yield the queries with judgments, in file order, with the best documents of the first stage as candidates.

    Judged documents that the first stage did not find are not added: `missing` has their labels. As in BEIR's own
    evaluation, a document with the id of the query is not a candidate (in ArguAna and Quora it is the query itself).
    """
    corpus_path, queries_path, qrels_path, *run_path = files(folder)
    qrels, max_grade = _read_qrels(qrels_path)
    corpus = {record.text("_id"): _memory(record) for record in read_lines(corpus_path)}
    queries = {record.text("_id"): record.text("text") for record in read_lines(queries_path)}
    judged_queries = {name: query for name, query in queries.items() if name in qrels}
    if not judged_queries:
        raise InputError(f"has no judgments of the queries in {queries_path}", location=str(qrels_path))
    run = _read_run(run_path[0]) if run_path else _bm25_run(judged_queries, corpus)
    for name, query in judged_queries.items():
        labels = {document: label / max_grade for document, label in qrels[name].items()}
        others = [(document, score) for document, score in run.get(name, {}).items() if document != name]
        best = sorted(others, key=lambda entry: -entry[1])[:POOL_SIZE]
        kept = {document: score for document, score in best if document in corpus}
        candidates = tuple(
            Candidate(corpus[document].with_score(score), labels.get(document, 0.0)) for document, score in kept.items()
        )
        yield Example(
            id=name,
            query=query,
            candidates=candidates,
            source=folder.name,
            missing=tuple(label for document, label in labels.items() if label > 0 and document not in kept),
        )


def _memory(record: Record) -> Memory:
    title, text = record.optional_text("title"), record.get("text", str)
    return Memory(f"{title}: {text}" if title else text, id=record.text("_id"))


def _read_qrels(path: Path) -> tuple[Qrels, float]:
    """Read the columns query-id, corpus-id and score, or TREC's four; return the judgments and the highest grade."""
    qrels: Qrels = {}
    for where, parts in _columns(path):
        if len(parts) not in (3, 4):
            raise InputError(f"expected query-id, corpus-id and score, got {len(parts)} columns", location=where)
        query, document, score = parts[0], parts[-2], parts[-1]
        if score.lower() in ("score", "label") or query == document:
            continue
        qrels.setdefault(query, {})[document] = max(_number(score, where), 0.0)
    max_grade = max((label for judged in qrels.values() for label in judged.values()), default=0.0)
    if max_grade <= 0:
        raise InputError("no document is judged relevant", code="empty", location=str(path))
    return {query: judged for query, judged in qrels.items() if any(judged.values())}, max_grade


def _read_run(path: Path) -> Run:
    """Read a first-stage run: TREC's six columns, or query-id, corpus-id and score."""
    run: Run = {}
    for where, parts in _columns(path):
        if len(parts) not in (3, 6):
            raise InputError(
                f"expected 6 columns (TREC) or 3 (query, document, score), got {len(parts)}", location=where
            )
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
        raise InputError(f"expected a number, got {text.strip()!r:.60}", field="score", location=where) from None


def _bm25_run(queries: Mapping[str, str], corpus: Mapping[str, Memory]) -> Run:
    names = list(corpus)
    index = StemmedBM25([memory.text for memory in corpus.values()])
    # One more than the pool, since one of them may be the query itself.
    return {
        name: {names[i]: score for i, score in index.search(query, POOL_SIZE + 1)} for name, query in queries.items()
    }


def _find(folder: Path, *names: str) -> Path:
    path = _find_optional(folder, *names)
    if path is None:
        raise InputError(f"{' or '.join(names)} (plain, .gz or .zst) is missing", location=str(folder))
    return path


def _find_optional(folder: Path, *names: str) -> Path | None:
    choices = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz", ".zst"))
    return next((path for path in choices if path.is_file()), None)


loaders.add(Loader("beir", "a BEIR folder: corpus, queries, qrels, optionally a run", read, files))
