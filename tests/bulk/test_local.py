"""Bulk jobs in this process: every row once, checkpoints, failures."""

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mnemorank import InputError, MnemorankError, Reranker
from mnemorank.bulk import BulkJob, TooManyFailuresError, run_bulk
from mnemorank.data.benchmarks import loaders
from mnemorank.data.formats import read_lists
from mnemorank.data.hard_negatives import NegativeMining, add_hard_negatives
from mnemorank.errors import ConflictError
from mnemorank.evaluation.benchmark import run_benchmark
from mnemorank.evaluation.summary import summarize
from mnemorank.evaluation.systems import load_system
from tests.data.endpoint import Endpoint, serving
from tests.helpers.kills import run_until_killed

WORDS = "ruby works at aurora labs before zenith berlin lives moved cat dog doctor visit march trip lisbon".split()


def examples(count, *, seed=0):
    generator = random.Random(seed)
    texts = [" ".join(generator.sample(WORDS, 5)) for _ in range(3 * count)]
    return [
        {
            "id": f"q{i}",
            "query": " ".join(generator.sample(WORDS, 3)),
            "candidates": [{"text": text, "label": float(j == 0)} for j, text in enumerate(texts[3 * i : 3 * i + 3])],
        }
        for i in range(count)
    ]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def rows(folder):
    return pq.read_table(folder).to_pylist()


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "output")


@pytest.fixture
def model(tiny_onnx):
    return {"model": str(tiny_onnx)}


def test_scores_equal_those_of_a_plain_loop(tmp_path, output, model):
    records = examples(23)
    path = write(tmp_path / "q.jsonl", records)
    result = run_bulk(BulkJob("score", (path,), output, model, block_rows=5))
    assert (result.rows, result.failures, result.blocks, result.processed) == (23, (), 5, 23)
    with Reranker(model["model"]) as reranker:
        for row, record in zip(rows(output), records, strict=True):
            scores = reranker.score(record["query"], [c["text"] for c in record["candidates"]])
            assert row["relevance"] == [score.relevance for score in scores]
            assert row["raw_score"] == [score.raw_score for score in scores]
            assert (row["id"], row["query"]) == (record["id"], record["query"])
    assert [(row["file"], row["line"]) for row in rows(output)] == [(path, i) for i in range(1, 24)]


def test_rows_may_hold_one_memory_or_many(tmp_path, output, model):
    path = write(
        tmp_path / "q.jsonl",
        [
            {"query": "ruby works", "text": "ruby works at aurora", "label": 1},
            {"query": "ruby works", "memories": ["ruby works at aurora", {"content": "a cat"}]},
        ],
    )
    run_bulk(BulkJob("score", (path,), output, model))
    first, second = rows(output)
    assert len(first["relevance"]) == 1
    assert first["relevance"][0] == second["relevance"][0]


def test_reads_folders_parquet_and_compressed_files(tmp_path, output, model):
    folder = tmp_path / "in"
    folder.mkdir()
    records = examples(12)
    pq.write_table(pa.Table.from_pylist(records[:5]), folder / "a.parquet", row_group_size=2)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in records[5:9]).encode()))
    write(folder / "c.ndjson", records[9:])
    (folder / "_ignored.jsonl").write_text("not JSON")
    result = run_bulk(BulkJob("score", (str(folder),), output, model, block_rows=3))
    assert [row["id"] for row in rows(output)] == [record["id"] for record in records]
    assert [row["line"] for row in rows(output)] == [1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3]
    assert result.blocks == 4
    again = run_bulk(BulkJob("score", (f"file://{folder}/*.parquet",), f"file://{tmp_path}/other", model, block_rows=3))
    assert again.rows == 5
    assert [row["raw_score"] for row in rows(tmp_path / "other")] == [row["raw_score"] for row in rows(output)[:5]]


def test_an_object_store(tmp_path, model):
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe_file("/in/q.jsonl", "".join(json.dumps(record) + "\n" for record in examples(7)).encode())
    job = BulkJob("score", ("memory://in/*.jsonl",), "memory://out", model, block_rows=3)
    try:
        assert run_bulk(job).rows == 7
        assert run_bulk(job).continued == 3
        assert len(files.glob("/out/block-*.parquet")) == 3
    finally:
        files.rm("/in", recursive=True)
        files.rm("/out", recursive=True)


def test_bad_rows_are_listed_and_do_not_stop_others(tmp_path, output, model):
    path = tmp_path / "q.jsonl"
    good = json.dumps(examples(1)[0]).encode()
    bad_date = json.dumps({"query": "ruby", "memories": [{"text": "a", "occurred_start": "soon"}]}).encode()
    path.write_bytes(b"\n".join([good, b"{", b"", b"[1]", b"\xff\xfe", bad_date, b'{"text": "no query"}', good]))
    result = run_bulk(BulkJob("score", (str(path),), output, model, block_rows=2))
    assert [row["line"] for row in rows(output)] == [1, 8]
    found = [(failure.line, failure.field) for failure in result.failures]
    assert found == [(2, None), (4, None), (5, None), (6, "memories.0.occurred_start"), (7, "query")]
    listed = [json.loads(line) for line in (tmp_path / "output/_failures.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in listed] == [2, 4, 5, 6, 7]
    assert {entry["file"] for entry in listed} == {str(path)}


def test_failures_can_be_limited_and_retried(tmp_path, output):
    path = write(tmp_path / "q.jsonl", examples(4))
    endpoint = Endpoint(dict.fromkeys(range(100), 400))
    with serving(endpoint) as url:
        options = {"teacher": {"url": url, "model": "judge"}}
        job = BulkJob("label", (path,), output, options, block_rows=2)
        with pytest.raises(TooManyFailuresError):
            run_bulk(job, max_failures=1)
        assert len((tmp_path / "output/_failures.jsonl").read_text().splitlines()) == 2
        result = run_bulk(job)
        assert (result.rows, len(result.failures), result.continued) == (0, 4, 1)
        endpoint.script.clear()
        assert len(run_bulk(job).failures) == 4  # done is done, unless asked for
        result = run_bulk(job, retry_failures=True)
    assert (result.rows, result.failures, result.continued) == (4, (), 0)
    assert (tmp_path / "output/_failures.jsonl").read_text() == ""


def test_labels_and_chains_tasks(tmp_path, output):
    records = examples(3)
    records[0]["candidates"][1]["text"] = "the right memory"
    path = write(tmp_path / "q.jsonl", records)
    endpoint = Endpoint()
    with serving(endpoint) as url:
        options = {"teacher": {"url": url, "model": "judge"}}
        run_bulk(BulkJob("label", (path,), output, options))
    labeled = [json.loads(row["record"]) for row in rows(output)]
    assert [c["label"] for c in sorted(labeled[0]["candidates"], key=lambda c: c["text"] == "the right memory")][
        -1
    ] == 1
    mined = str(tmp_path / "mined")
    assert run_bulk(BulkJob("mine", (output,), mined, {"mining": {"count": 1}})).rows == 3
    assert all(len(json.loads(row["record"])["candidates"]) == 4 for row in rows(mined))


def test_mined_negatives_do_not_depend_on_blocks(tmp_path, output):
    path = write(tmp_path / "q.jsonl", examples(9))
    expected = add_hard_negatives(list(read_lists(tmp_path / "q.jsonl")), NegativeMining(count=3), seed=7)
    run_bulk(BulkJob("mine", (path,), output, {"mining": {"count": 3}, "seed": 7}, block_rows=2))
    found = [[c["text"] for c in json.loads(row["record"])["candidates"]] for row in rows(output)]
    assert found == [[memory.text for memory in example.memories] for example in expected]


def test_a_corpus_of_its_own(tmp_path, output):
    path = write(tmp_path / "q.jsonl", examples(2))
    corpus = write(tmp_path / "corpus.jsonl", [{"text": f"ruby cat number {i}"} for i in range(5)])
    run_bulk(BulkJob("mine", (path,), output, {"mining": {"count": 2}, "corpus": [corpus]}))
    for row in rows(output):
        assert all("number" in c["text"] for c in json.loads(row["record"])["candidates"][3:])


def test_evaluation_equals_the_benchmark(tmp_path, output, model):
    path = write(tmp_path / "q.jsonl", examples(11))
    result = run_bulk(BulkJob("evaluate", (path,), output, model, block_rows=4))
    system = load_system(model["model"])
    expected = summarize(run_benchmark(loaders["lists"], tmp_path / "q.jsonl", [system]))
    (figures,) = expected.systems.values()
    for name in ("map", "ndcg@10", "hit@1"):
        assert result.summary[name] == pytest.approx(figures.mean(name), abs=1e-12)
        assert np.allclose([row[name] for row in rows(output)], figures.values[name])
    assert json.loads((tmp_path / "output/_summary.json").read_text())["rows"] == 11


def test_another_job_is_refused(tmp_path, output, model):
    path = write(tmp_path / "q.jsonl", examples(3))
    job = BulkJob("score", (path,), output, model)
    run_bulk(job)
    with pytest.raises(ConflictError) as caught:
        run_bulk(BulkJob("score", (path,), output, {**model, "instruction": "x"}))
    assert (caught.value.field, caught.value.code) == ("output", "other_job")
    write(tmp_path / "q.jsonl", examples(4))
    with pytest.raises(ConflictError):
        run_bulk(job)


@pytest.mark.parametrize("inputs", ["nowhere.jsonl", "empty", "q.csv", "unknown://x/q.jsonl"])
def test_bad_inputs(tmp_path, output, model, inputs):
    (tmp_path / "empty").mkdir()
    (tmp_path / "q.csv").write_text("query\n")
    path = inputs if "://" in inputs else str(tmp_path / inputs)
    with pytest.raises(InputError) as caught:
        run_bulk(BulkJob("score", (path,), output, model))
    assert caught.value.location == path
    assert not (tmp_path / "output").exists()


def test_a_damaged_checkpoint_is_computed_again(tmp_path, output, model):
    path = write(tmp_path / "q.jsonl", examples(6))
    job = BulkJob("score", (path,), output, model, block_rows=2)
    run_bulk(job)
    before = rows(output)
    damaged = tmp_path / "output/block-000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    (tmp_path / "output/block-000002.parquet.1-2.partial").write_bytes(b"half")
    assert run_bulk(job).continued == 2
    assert rows(output) == before


def test_a_missing_model_is_an_error_of_the_job(tmp_path, output):
    path = write(tmp_path / "q.jsonl", examples(1))
    with pytest.raises(MnemorankError):
        run_bulk(BulkJob("score", (path,), output, {"model": str(tmp_path / "nowhere")}))
    assert not (tmp_path / "output").exists()
    assert run_bulk(BulkJob("evaluate", (path,), output, {"model": "bm25"})).rows == 1


@pytest.mark.slow
def test_a_killed_job_continues_with_every_row_once(tmp_path, output, model):
    path = write(tmp_path / "q.jsonl", examples(60))
    job = BulkJob("score", (path,), output, model, block_rows=3)
    expected = str(tmp_path / "expected")
    run_bulk(BulkJob("score", (path,), expected, model, block_rows=3))

    def work(report):
        run_bulk(job, threads=1, on_progress=lambda done, *_: report(done))

    generator = random.Random(3)
    finished = 0
    for _ in range(5):
        reports = run_until_killed(work, generator, max_reports=4)
        if reports:
            assert reports[0] >= finished
            finished = reports[-1]
    result = run_bulk(job)
    assert result.continued >= finished > 0
    assert rows(output) == rows(expected)
