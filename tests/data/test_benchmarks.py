"""Benchmark loaders, on small files in the published formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from mnemorank import InputError, Moment
from mnemorank.data.benchmarks import loaders

TASKS = {
    "triplets", "lists", "graded", "longmemeval", "longmemeval-turns", "locomo", "hotpotqa", "2wiki", "musique",
    "squad", "beir", "everyday",
}  # fmt: skip


def load(task, path):
    return list(loaders[task].read(path))


def write(path: Path, value) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def write_lines(path: Path, records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def relevant_texts(example):
    return [c.memory.text for c in example.candidates if c.label > 0]


def longmemeval_question(**changes):
    return {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "Where did I move?",
        "question_date": "2023/05/30 (Tue) 23:40",
        "answer": "Porto",
        "answer_session_ids": ["s2"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:05"],
        "haystack_session_ids": ["s1", "s2"],
        "haystack_sessions": [
            [{"role": "user", "content": "Any tips for bread?"}, {"role": "assistant", "content": "Use steam."}],
            [
                {"role": "user", "content": "I moved to Porto.", "has_answer": True},
                {"role": "assistant", "content": "How nice!", "has_answer": False},
            ],
        ],
        **changes,
    }


def locomo_conversation():
    return {
        "sample_id": "conv-1",
        "qa": [
            {"question": "When did Ana paint?", "answer": "2022", "evidence": ["D1:2"], "category": 2},
            {"question": "What do both like?", "answer": "tea", "evidence": ["D1:1; D2:1"], "category": 1},
            {"question": "When did Ana sing?", "adversarial_answer": "x", "evidence": ["D1:2"], "category": 5},
            {"question": "Who left?", "answer": "x", "evidence": ["D9:9"], "category": 4},
        ],
        "conversation": {
            "speaker_a": "Ana",
            "speaker_b": "Bo",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": [
                {"speaker": "Ana", "dia_id": "D1:1", "text": "I love tea."},
                {"speaker": "Ana", "dia_id": "D1:2", "text": "I painted this!", "blip_caption": "a sunrise"},
            ],
            "session_2_date_time": "11:05 am on 12 June, 2023",
            "session_2": [{"speaker": "Bo", "dia_id": "D2:1", "text": "Tea for me too."}],
        },
    }


def hotpot_question(**changes):
    return {
        "_id": "h1",
        "question": "Who founded the firm that made the Arrow?",
        "type": "bridge",
        "supporting_facts": [["Arrow", 0], ["Firm", 1]],
        "context": [
            ["Arrow", ["The Arrow is a car.", " Firm made it."]],
            ["Tree", ["A plant."]],
            ["Firm", ["By Lee."]],
        ],
        **changes,
    }


def test_all_tasks_are_registered():
    assert set(loaders) == TASKS


def test_triplets_rank_each_query_against_all_memories_of_the_file(tmp_path):
    old = {"text": "Lives in Rome", "occurred_start": "2019", "occurred_end": "2021", "type": "world", "context": ""}
    new = {"text": "Lives in Oslo", "occurred_start": "2021", "occurred_end": None, "type": "world", "context": ""}
    cat = {"text": "Has a cat", "occurred_start": None, "occurred_end": None, "type": "world", "context": ""}
    path = write_lines(
        tmp_path / "t.jsonl",
        [
            {"query": "where now?", "positive": new, "negative": old},
            {"query": "where before?", "positive": old, "negative": new},
            {"query": "where now?", "positive": new, "negative": cat},
        ],
    )
    now, before = load("triplets", path)
    assert [len(now.candidates), len(before.candidates)] == [3, 3]
    assert relevant_texts(now) == ["Lives in Oslo"]
    assert relevant_texts(before) == ["Lives in Rome"]
    sides = [(now.candidates[a].memory.text, now.candidates[b].memory.text) for a, b in now.pairs]
    assert sides == [("Lives in Oslo", "Lives in Rome"), ("Lives in Oslo", "Has a cat")]


def test_the_same_query_in_two_groups_is_two_examples(tmp_path):
    rows = [
        {"query": "where?", "positive": "Oslo", "negative": "a cat", "group": "ann"},
        {"query": "Where?", "positive": "Bern", "negative": "a cat"},
        {"query": "where?", "positive": "Rome", "negative": "a dog", "group": "bob"},
    ]
    ann, nobody, bob = load("triplets", write_lines(tmp_path / "t.jsonl", rows))
    assert [example.group for example in (ann, bob, nobody)] == ["ann", "bob", "where"]
    assert [memory.text for memory in ann.memories] == ["Oslo", "a cat", "Bern", "a dog"]
    assert [memory.text for memory in bob.memories] == ["a cat", "Bern", "Rome", "a dog"]
    assert (relevant_texts(ann), relevant_texts(bob)) == (["Oslo"], ["Rome"])
    assert (ann.pairs, bob.pairs) == (((0, 1),), ((2, 3),))


def test_graded_pairs_are_relevant_from_one_half(tmp_path):
    path = write_lines(
        tmp_path / "g.jsonl",
        [{"query": "q", "text": text, "label": label, "group": "g"} for text, label in (("a", 0.2), ("b", 0.8))],
    )
    (example,) = load("graded", path)
    assert example.labels == [0.2, 0.8]
    assert example.relevant_from == 0.5


def test_longmemeval_sessions_are_dated_candidates(tmp_path):
    path = write(tmp_path / "l.json", [longmemeval_question(), longmemeval_question(question_id="q2_abs")])
    example, unanswerable = load("longmemeval", path)
    first, second = example.memories
    assert second.text == "user: I moved to Porto.\nassistant: How nice!"
    assert (first.id, str(first.mentioned_at)) == ("s1", "2023-05-20T02:21:00")
    assert example.query_time == Moment.parse("2023-05-30T23:40")
    assert example.labels == [0.0, 1.0]
    assert example.kind == "single-session-user"
    assert not unanswerable.answerable
    assert unanswerable.labels == [0.0, 0.0]


def test_longmemeval_counts_sessions_missing_from_the_haystack(tmp_path):
    answers = {"answer_session_ids": ["s2", "s8", "s9"]}
    rows = [longmemeval_question(**answers), longmemeval_question(question_id="q2_abs", **answers)]
    example, unanswerable = load("longmemeval", write(tmp_path / "l.json", rows))
    assert (example.labels, example.missing) == ([0.0, 1.0], (1.0, 1.0))
    assert unanswerable.missing == ()


def test_longmemeval_turns_are_relevant_by_has_answer(tmp_path):
    path = write(tmp_path / "l.json", [longmemeval_question()])
    (example,) = load("longmemeval-turns", path)
    assert len(example.candidates) == 4
    assert relevant_texts(example) == ["I moved to Porto."]
    assert example.memories[2].speaker == "user"


def test_longmemeval_is_streamed(tmp_path):
    """Questions before a truncated end are still read."""
    path = tmp_path / "l.json"
    path.write_text(json.dumps([longmemeval_question(question_id=f"q{i}") for i in range(5)])[:-30])
    seen = []
    with pytest.raises(InputError, match=r"l.json\[4\]"):
        seen.extend(example.id for example in loaders["longmemeval"].read(path))
    assert seen == ["q0", "q1", "q2", "q3"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"haystack_dates": ["2023/05/20 (Sat) 02:21"]}, "haystack_sessions"),
        ({"haystack_dates": ["2023/05/20 (Sat) 02:21", "soon"]}, "haystack_dates.1"),
        ({"question": ""}, "question"),
        ({"answer_session_ids": "s2"}, "answer_session_ids"),
        ({"haystack_sessions": [[{"role": "user"}], []]}, "haystack_sessions.0.0.content"),
    ],
)
def test_longmemeval_errors_name_line_and_field(tmp_path, changes, field):
    path = tmp_path / "l.json"
    path.write_text(
        "[\n" + json.dumps(longmemeval_question()) + ",\n" + json.dumps(longmemeval_question(**changes)) + "]"
    )
    with pytest.raises(InputError) as caught:
        load("longmemeval", path)
    assert (caught.value.field, caught.value.location) == (field, f"{path}[1]")


def test_locomo_turns_categories_and_evidence(tmp_path):
    temporal, multi, adversarial, without_evidence = load("locomo", write(tmp_path / "c.json", [locomo_conversation()]))
    assert relevant_texts(temporal) == ["Ana: I painted this! [photo: a sunrise]"]
    assert len(relevant_texts(multi)) == 2
    assert [e.kind for e in (temporal, multi, adversarial)] == ["temporal", "multi-hop", "adversarial"]
    assert not adversarial.answerable
    assert without_evidence.missing == (1.0,)
    assert str(temporal.memories[2].mentioned_at) == "2023-06-12T11:05:00"
    assert temporal.group == "conv-1"


def test_locomo_evidence_may_have_leading_zeros(tmp_path):
    conversation = locomo_conversation()
    conversation["qa"] = [{**conversation["qa"][0], "evidence": ["D1:02", "D01:001", "D10:2"]}]
    (example,) = load("locomo", write(tmp_path / "c.json", [conversation]))
    assert example.labels == [1.0, 1.0, 0.0]
    assert example.missing == (1.0,)


def test_locomo_errors_name_the_field(tmp_path):
    conversation = locomo_conversation()
    conversation["conversation"]["session_1_date_time"] = "yesterday"
    with pytest.raises(InputError, match=r"c\.json\[0\]") as caught:
        load("locomo", write(tmp_path / "c.json", [conversation]))
    assert caught.value.field == "conversation.session_1_date_time"


@pytest.mark.parametrize("task", ["hotpotqa", "2wiki"])
def test_multi_hop_paragraphs_are_relevant_by_title(tmp_path, task):
    columns = hotpot_question(
        supporting_facts={"title": ["Arrow", "Firm"], "sent_id": [0, 1]},
        context={
            "title": ["Arrow", "Tree", "Firm"],
            "sentences": [["The Arrow is a car.", " Firm made it."], ["A plant."], ["By Lee."]],
        },
    )
    published, from_hub = load(task, write(tmp_path / "h.json", [hotpot_question(), columns]))
    assert relevant_texts(published) == ["Arrow: The Arrow is a car. Firm made it.", "Firm: By Lee."]
    assert published.memories == from_hub.memories
    assert published.labels == from_hub.labels
    assert published.kind == "bridge"


def test_multi_hop_errors_name_the_paragraph(tmp_path):
    path = write(tmp_path / "h.json", [hotpot_question(context=[["Arrow", "no list"]])])
    with pytest.raises(InputError, match=r"h.json\[0\]: context\.0: "):
        load("hotpotqa", path)


def test_a_multi_hop_type_is_a_string_or_null(tmp_path):
    assert load("hotpotqa", write(tmp_path / "h.json", [hotpot_question(type=None)]))[0].kind is None
    with pytest.raises(InputError, match=r"h.json\[0\]: type: "):
        load("hotpotqa", write(tmp_path / "h.json", [hotpot_question(type=["bridge"])]))


def test_musique_reads_lines_and_unanswerable_twins(tmp_path):
    def question(**changes):
        paragraphs = [
            {"idx": 0, "title": "A", "paragraph_text": "first", "is_supporting": True},
            {"idx": 1, "title": "B", "paragraph_text": "second", "is_supporting": False},
        ]
        return {"id": "2hop__1_2", "question": "q?", "paragraphs": paragraphs, "answerable": True, **changes}

    answered, twin = load("musique", write_lines(tmp_path / "m.jsonl", [question(), question(answerable=False)]))
    assert relevant_texts(answered) == ["A: first"]
    assert answered.kind == "2hop"
    assert answered.id != twin.id
    assert answered.group == twin.group
    assert not twin.answerable
    assert relevant_texts(twin) == []
    broken = question()
    del broken["paragraphs"][1]["is_supporting"]
    with pytest.raises(InputError, match=r"m.jsonl:1: paragraphs\.1\.is_supporting: "):
        load("musique", write_lines(tmp_path / "m.jsonl", [broken]))


def test_squad_paragraphs_of_the_article(tmp_path):
    article = {
        "title": "Oslo",
        "paragraphs": [
            {
                "context": "Oslo lies on a fjord.",
                "qas": [
                    {"id": "a", "question": "Lies on what?", "answers": [{"text": "a fjord", "answer_start": 13}]},
                    {"id": "b", "question": "Who is mayor?", "answers": [], "is_impossible": True},
                ],
            },
            {"context": "It was founded in 1040.", "qas": []},
        ],
    }
    answered, impossible = load("squad", write(tmp_path / "s.json", {"data": [article]}))
    assert relevant_texts(answered) == ["Oslo lies on a fjord."]
    assert len(answered.candidates) == 2
    assert not impossible.answerable


def test_squad_splits_contracts_into_clauses(tmp_path):
    clauses = [f"{i}. " + f"clause number {i} of this agreement says much about little " * 6 for i in range(30)]
    contract = "\n\n".join(clauses)
    start = contract.index("clause number 17")
    question = {"id": "c", "question": "Clause?", "answers": [{"text": "clause number 17", "answer_start": start}]}
    path = write(
        tmp_path / "s.json", {"data": [{"title": "K", "paragraphs": [{"context": contract, "qas": [question]}]}]}
    )
    (example,) = load("squad", path)
    assert len(example.candidates) == 30
    assert [text.split(".")[0] for text in relevant_texts(example)] == ["17"]


def beir_folder(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    documents = [("d1", "Tea", "green tea leaves"), ("d2", "", "black coffee"), ("d3", "Sea", "salt water")]
    write_lines(folder / "corpus.jsonl", [{"_id": i, "title": t, "text": x} for i, t, x in documents])
    write_lines(folder / "queries.jsonl", [{"_id": "q1", "text": "tea leaves"}, {"_id": "q2", "text": "unjudged"}])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\n")
    return folder


def test_beir_candidates_are_the_best_of_bm25(tmp_path):
    (example,) = load("beir", beir_folder(tmp_path / "b"))
    assert [(c.memory.id, c.label) for c in example.candidates] == [("d1", 1.0)]
    assert example.missing == (0.5,)
    assert example.memories[0].first_stage_score > 0


def test_beir_candidates_are_those_of_a_run(tmp_path):
    folder = beir_folder(tmp_path / "b")
    (folder / "run.trec").write_text("q1 Q0 d2 1 9.5 sys\nq1 Q0 d3 2 8.5 sys\n")
    (example,) = load("beir", folder)
    assert [(c.memory.id, c.label, c.memory.first_stage_score) for c in example.candidates] == [
        ("d2", 0.5, 9.5),
        ("d3", 0.0, 8.5),
    ]
    assert example.missing == (1.0,)
    (folder / "run.trec").write_text("q1 Q0 d2 1 high sys\n")
    with pytest.raises(InputError, match=r"run.trec:1: score: "):
        load("beir", folder)


def test_a_relevant_document_of_the_run_that_is_not_in_the_corpus_is_missing(tmp_path):
    folder = beir_folder(tmp_path / "b")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td9\t1\n")
    (folder / "run.trec").write_text("q1 Q0 d1 1 9.5 sys\nq1 Q0 d9 2 8.5 sys\n")
    (example,) = load("beir", folder)
    assert [c.memory.id for c in example.candidates] == ["d1"]
    assert example.missing == (0.5,)


@pytest.mark.parametrize("has_run", [False, True])
def test_beir_excludes_the_query_itself(tmp_path, monkeypatch, has_run):
    """ArguAna's queries are documents of the corpus with the same id; the pool keeps its size without them."""
    monkeypatch.setattr("mnemorank.data.benchmarks.beir.POOL_SIZE", 2)
    folder = beir_folder(tmp_path / "b")
    texts = {"q1": "tea leaves", "d1": "green tea leaves", "d2": "black tea leaves in water"}
    write_lines(folder / "corpus.jsonl", [{"_id": name, "text": text} for name, text in texts.items()])
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\tq1\t2\nq2\tq2\t1\n")
    if has_run:
        (folder / "run.tsv").write_text("q1\tq1\t9\nq1\td1\t8\nq1\td2\t7\n")
    (example,) = load("beir", folder)  # q2 is judged only against itself
    assert [(c.memory.id, c.label) for c in example.candidates] == [("d1", 1.0), ("d2", 0.0)]
    assert example.missing == ()


def test_beir_names_the_missing_file(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"corpus.jsonl"):
        load("beir", tmp_path / "b")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_files_are_read(tmp_path, ending):
    content = json.dumps([longmemeval_question()]).encode()
    path = tmp_path / f"l.json{ending}"
    path.write_bytes(gzip.compress(content) if ending == ".gz" else zstandard.compress(content))
    (example,) = load("longmemeval", path)
    assert example.id == "q1"


def test_a_truncated_gzip_file_is_an_error(tmp_path):
    path = tmp_path / "l.json.gz"
    path.write_bytes(gzip.compress(json.dumps([longmemeval_question()] * 50).encode())[:-40])
    with pytest.raises(InputError, match=r"l.json.gz"):
        load("longmemeval", path)


def everyday_store(**changes):
    return {
        "store": "kitchen",
        "style": "short notes",
        "author": "z",
        "memories": [
            {"id": "m1", "text": "The oven is a Brandt.", "created_at": "2024-01-05T09:00:00"},
            {"id": "m2", "text": "Wifi password is tulip7.", "occurred_start": "2024-02", "occurred_end": "2025-03-01"},
            {"id": "m3", "text": "Changed the wifi password to fern9.", "occurred_start": "2025-03-01"},
            {"id": "m4", "text": "The router is behind the fridge."},
        ],
        "updates": [["m2", "m3"]],
        "questions": [
            {
                "query": "wifi password?",
                "kind": "current",
                "now": "2026-06-15",
                "relevant": ["m3"],
                "outdated": ["m2"],
                "partly": ["m4"],
            },
            {"query": "When is rent due?", "kind": "none", "relevant": [], "outdated": [], "partly": []},
        ],
        **changes,
    }


def test_everyday_memories_are_relevant_outdated_or_left_out(tmp_path):
    current, _ = load("everyday", write(tmp_path / "z.json", [everyday_store()]))
    assert [(c.memory.id, c.label) for c in current.candidates] == [("m1", 0.0), ("m2", 0.0), ("m3", 1.0)]
    assert (current.kind, current.group, current.id) == ("current", "z/kitchen", "z/kitchen:0")
    assert current.query_time == Moment.parse("2026-06-15")
    assert current.pairs == ((2, 1),)  # m3 should rank above m2
    assert str(current.memories[0].mentioned_at) == "2024-01-05T09:00:00"
    assert (str(current.memories[1].occurred_start), str(current.memories[1].occurred_end)) == ("2024-02", "2025-03-01")


def test_everyday_questions_of_kind_none_are_unanswerable(tmp_path):
    answerable, unanswerable = load("everyday", write(tmp_path / "z.json", [everyday_store()]))
    assert (answerable.answerable, unanswerable.answerable) == (True, False)
    assert unanswerable.labels == [0.0] * 4
    assert unanswerable.query_time is None


def test_everyday_reads_all_files_of_a_folder(tmp_path):
    write(tmp_path / "b.json", [everyday_store(author="b")])
    write(tmp_path / "a.json", [everyday_store(author="a"), everyday_store(author="a", store="garden")])
    (tmp_path / "README.md").write_text("notes")
    groups = [example.group for example in load("everyday", tmp_path)]
    assert groups == ["a/kitchen"] * 2 + ["a/garden"] * 2 + ["b/kitchen"] * 2
    assert [path.name for path in loaders["everyday"].files(tmp_path)] == ["a.json", "b.json"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError) as caught:
        load("everyday", empty)
    assert caught.value.code == "empty"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"relevant": ["m9"]}, "questions.0.relevant"),
        ({"outdated": ["m9"]}, "questions.0.outdated"),
        ({"relevant": ["m2"]}, "questions.0.relevant"),
        ({"relevant": []}, "questions.0.relevant"),
        ({"kind": "none"}, "questions.0.relevant"),
        ({"kind": None}, "questions.0.kind"),
        ({"now": "soon"}, "questions.0.now"),
        ({"query": ""}, "questions.0.query"),
    ],
)
def test_everyday_errors_name_the_field(tmp_path, changes, field):
    store = everyday_store()
    store["questions"][0] |= changes
    with pytest.raises(InputError, match=r"z\.json\[0\]") as caught:
        load("everyday", write(tmp_path / "z.json", [store]))
    assert caught.value.field == field


def test_everyday_memory_ids_are_unique(tmp_path):
    store = everyday_store()
    store["memories"][1]["id"] = "m1"
    with pytest.raises(InputError, match=r"z\.json\[0\]: memories\.1\.id: "):
        load("everyday", write(tmp_path / "z.json", [store]))
