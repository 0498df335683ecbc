"""The makers of the bundled model's mix: lists without shortcuts, each right memory apart from the wrong ones."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model


@pytest.fixture
def makers(monkeypatch):
    folder = Path(__file__).parents[2] / "research" / "mini_data"
    monkeypatch.syspath_prepend(str(folder))
    yield
    for path in folder.glob("[a-z]*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def dates(makers):
    import dated_facts as dates

    return dates


def test_the_same_seed_makes_the_same_lists(dates):
    assert dates.make(20, random.Random(5)) == dates.make(20, random.Random(5))


def test_neither_the_newest_nor_the_ongoing_memory_is_always_right(dates):
    made = dates.make(400, random.Random(5))
    newest = ongoing = 0
    for one in made:
        right, *rest = [Memory.of(fields) for fields in (*one.right, *one.wrong)]
        newest += all(memory.date is None or not memory.is_newer_than(right) for memory in rest)
        ongoing += right.is_ongoing
    assert 0.15 < newest / len(made) < 0.6
    assert 0.1 < ongoing / len(made) < 0.5


def test_every_memory_is_valid_and_the_right_one_is_not_among_the_wrong(dates):
    for one in dates.make(200, random.Random(6)):
        assert one.query
        assert one.wrong
        for fields in (*one.right, *one.wrong):
            memory = Memory.of(fields)
            assert memory.occurred_end is None or not memory.occurred_end.is_before(memory.occurred_start)
        assert one.right[0] not in one.wrong


@pytest.mark.parametrize("name", ["passages", "articles", "articles-dev", "personas", "hops"])
def test_what_we_wrote_ourselves_is_whole(makers, name):
    import agent_texts as written

    lists = written.make(random.Random(1))[name]
    assert len(lists) > 300
    for one in lists:
        assert one.query.strip()
        assert one.right
        assert len(one.wrong) >= 3
        assert all(memory not in one.wrong for memory in one.right)
        assert all(Memory.of(each).text for each in one.candidates())
    asked = [one.query for one in lists]
    assert len(set(asked)) > 0.99 * len(asked)
    # Where there are dates, right and wrong memories have them alike.
    for one in lists:
        assert len({isinstance(each, dict) and "occurred_start" in each for each in (*one.right, *one.wrong)}) == 1


def test_articles_kept_to_choose_by_are_apart(makers):
    import agent_texts as written

    made = written.passages(random.Random(1))
    texts = {name: {Memory.of(each).text for one in lists for each in one.candidates()} for name, lists in made.items()}
    kept, trained = texts["articles-dev"], texts["articles"] | texts["passages"]
    assert len(kept) > 200
    assert kept.isdisjoint(trained)
    assert all(len(one.wrong) == 11 for one in made["articles-dev"])
    assert all(len(one.wrong) == 8 for one in made["articles"])
    topics = {Memory.of(text).text: topic["topic"] for topic in written._read("passages") for text in topic["passages"]}
    assert {topics[text] for text in kept}.isdisjoint(topics[text] for text in trained)


def test_of_a_scene_with_decoys_each_memory_is_right_as_often_and_none_for_the_last_question(makers):
    import agent_texts as written

    made = written.decoys()
    scenes = list(written._read("decoys"))
    assert len(scenes) > 1500
    for scene in scenes:
        assert sorted(question["right"] for question in scene["questions"]) in ([0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3])
        assert len({memory["text"] for memory in scene["memories"]}) == 4
    assert sum(map(len, made.values())) == sum(len(scene["questions"]) + 1 for scene in scenes)
    assert not any(one.right for one in made["decoys-none"])
    assert all(len(one.right) == 1 and len(one.wrong) == 3 for one in made["decoys"])
    apart = made["decoys-dev"] + made["decoys-test"]
    kept = {memory["text"] for one in apart for memory in (*one.right, *one.wrong)}
    trained = {memory["text"] for one in made["decoys"] for memory in one.right}
    assert made["decoys-dev"]
    assert made["decoys-test"]
    assert kept.isdisjoint(trained)
    assert all(Memory.of(each).text for one in made["decoys"] for each in one.candidates())


def test_conversations_and_threads_are_whole_and_what_is_kept_is_apart(makers):
    import agent_texts as written

    made = written.conversations(random.Random(1)) | written.threads(random.Random(1))
    for name, lists in made.items():
        assert len(lists) > 50
        for one in lists:
            assert one.query.strip()
            assert one.wrong
            assert all(memory not in one.wrong for memory in one.right)
            assert all(Memory.of(each).mentioned_at for each in (*one.right, *one.wrong))
        answered = {bool(one.right) for one in lists}
        kept = name.endswith(("-dev", "-test"))
        assert answered == ({True, False} if kept else {not name.endswith("-none")})
    for kind in ("conversations", "threads"):
        trained = {each["text"].removeprefix("user: ") for one in made[kind] for each in (*one.right, *one.wrong)}
        apart = made[f"{kind}-dev"] + made.get(f"{kind}-test", [])
        assert trained.isdisjoint(each["text"].removeprefix("user: ") for one in apart for each in one.right)


def test_a_question_about_a_conversation_names_turns_that_there_are_and_is_hard_by_its_neighbours(makers):
    import agent_texts as written

    talk = next(iter(written._read("conversations")))
    turns = list(written._spoken(talk))
    names = [name for name, _ in turns]
    assert all(set(question["right"]) <= set(names) for question in talk["questions"])
    place = names.index("2:5")
    assert written._beside(turns, ["2:5"]) == [turns[place - 1][1], turns[place + 1][1]]
    assert written._beside(turns, [names[0], names[1]]) == [turns[2][1]]


def test_a_persons_turn_never_sees_a_later_memory(makers):
    import agent_texts as written

    for persona in written._read("personas"):
        for turn, one in zip(persona["turns"], written._turns(persona), strict=True):
            assert all(each["occurred_start"] <= turn["query_time"] for each in one.wrong)


def test_a_long_list_keeps_its_right_memories_and_the_nearest_wrong_ones(makers, tmp_path):
    import narrowed

    wrong = [{"text": f"the cat number {n}" if n < 3 else f"other {n}", "label": 0} for n in range(40)]
    record = {"query": "where is the cat", "candidates": [{"text": "on the mat", "label": 1}, *reversed(wrong)]}
    path = tmp_path / "lists.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    (made,) = narrowed.make(path, random.Random(1), wrong=8)
    assert made.right == [{"text": "on the mat"}]
    assert len(made.wrong) == 8
    assert {f"the cat number {n}" for n in range(3)} <= {each["text"] for each in made.wrong}


@pytest.fixture
def ask(makers, monkeypatch, tmp_path):
    """Replaces what was asked by the given lines."""
    import agent_questions as asked

    def ask(*lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "questions.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        monkeypatch.setattr(asked, "OWN", tmp_path)
        return asked

    return ask


def test_every_question_asked_names_its_texts_and_is_asked_once_of_each(makers):
    import agent_questions as asked

    found = asked.read()
    assert set(found) == {"paragraph", "pair", "article", "news", "session", "turn"}
    for kind, lines in found.items():
        assert all(len(one["of"]) == 2 for one in lines if kind == "pair")
        assert all("at" in one for one in lines if kind == "turn")
        assert all(len(name) == 12 for one in lines for name in one["of"])
        assert len({(one["query"].lower(), one["of"][0]) for one in lines}) == len(lines)


def test_a_question_gets_its_paragraphs_and_others_that_look_like_them(ask):
    from agent_questions import key

    titled = [(f"Film {n}", f"a film of {1900 + n} directed by Person {n}") for n in range(30)]
    texts = [f"{title}: {text}" for title, text in titled]

    asked = ask(
        {"about": "paragraph", "query": "film of 1907?", "of": [key(texts[7])]},
        {"about": "paragraph", "query": "not in this data", "of": [key("elsewhere")]},
        {"about": "pair", "query": "older, Film 3 or Film 4?", "of": [key(texts[3]), key(texts[4])]},
    )
    made = asked.of_paragraphs([*titled, ("Film 7", "a film of 1907, by Person 7")], random.Random(1))
    (one,) = made["asked"]  # whose paragraph has a twin
    (two,) = made["asked-pairs"]
    for each, right in ((one, [texts[7]]), (two, texts[3:5])):
        assert [Memory.of(memory).text for memory in each.right] == right
        wrong = {Memory.of(memory).text for memory in each.wrong}
        assert len(wrong) == 5
        assert wrong <= set(texts) - set(right)


def test_questions_whose_texts_are_all_missing_are_an_error(ask):
    asked = ask({"about": "paragraph", "query": "who?", "of": ["0" * 12]})
    with pytest.raises(ValueError, match="1 questions about paragraph"):
        asked.of_paragraphs([("A", "a text"), ("B", "another text")], random.Random(1))


def test_what_answers_a_question_elsewhere_is_not_wrong_here(ask):
    from agent_questions import key

    titled = [(f"Film {n}", f"a film directed by Person {n}") for n in range(6)]
    texts = [f"{title}: {text}" for title, text in titled]
    lines = [{"about": "paragraph", "query": "which film?", "of": [key(text)]} for text in texts[:2]]
    for one in ask(*lines).of_paragraphs(titled, random.Random(1))["asked"]:
        assert not {Memory.of(each).text for each in one.wrong} & set(texts[:2])


def test_a_paragraph_is_told_from_the_others_of_its_article(ask, tmp_path):
    from agent_questions import key

    texts = [f"Paragraph {n} of {name} tells about number {n}." for name in ("alpha", "beta") for n in range(12)]
    path = tmp_path / "articles.jsonl.gz"
    lines = [
        {"query": "q", "group": group, "candidates": [{"text": text, "label": 0} for text in part]}
        for group, part in (("alpha", texts[:6]), ("alpha", texts[6:12]), ("beta", texts[12:]))
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    asked = ask(
        *({"about": "article", "query": "what of number 2?", "of": [key(text)]} for text in (texts[2], texts[3]))
    )
    for one, right in zip(asked.of_articles(path, random.Random(1)), (texts[2], texts[3]), strict=True):
        assert Memory.of(one.right[0]).text == right
        wrong = {Memory.of(each).text for each in one.wrong}
        assert len(wrong) == 8
        assert wrong <= set(texts[:12]) - {texts[2], texts[3]}


def test_news_is_told_from_passages_of_the_same_article(ask, tmp_path):
    from agent_questions import TITLE, key

    titles = [f"{name} and a title long enough to tell articles apart. " for name in ("Alpha", "Beta")]
    texts = [f"{title}Passage {n} about {n}." for title in titles for n in range(6)]
    assert all(len(title) > TITLE for title in titles)
    path = tmp_path / "news.jsonl.gz"
    record = {"query": "q", "candidates": [{"text": text, "label": 0} for text in texts]}
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    (one,) = ask({"about": "news", "query": "passage about 2?", "of": [key(texts[2])]}).of_news(path, random.Random(1))
    assert Memory.of(one.right[0]).text == texts[2]
    same = [each for each in one.wrong if Memory.of(each).text.startswith("Alpha")]
    assert (len(same), len(one.wrong)) == (4, 5)


def test_a_window_that_shares_a_line_with_the_right_one_is_not_wrong(ask):
    from agent_questions import key

    session = ["user: a dog\nassistant: a collie", "assistant: a collie\nuser: and cats", "user: what of birds"]
    other = [f"user: dog number {n}" for n in range(8)]
    asked = ask({"about": "session", "query": "what breed is my dog", "of": [key(session[0])]})
    (one,) = asked.of_sessions([session, other], random.Random(1))
    wrong = {Memory.of(each).text for each in one.wrong}
    assert session[1] not in wrong
    assert session[2] in wrong
    assert wrong & set(other)


def test_a_turn_knows_only_what_was_noted_by_then(ask, tmp_path):
    from agent_questions import key

    memories = [
        {"text": f"memory {n}", "occurred_start": f"2026-01-{n + 1:02}", "label": int(n == 0)} for n in range(20)
    ]
    path = tmp_path / "turns.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"query": "q", "group": "me", "candidates": memories}).encode()))
    asked = ask({"about": "turn", "query": "go on with memory 3", "at": "2026-01-12", "of": [key("memory 3")]})
    (one,) = asked.of_memories(path, random.Random(1))
    assert [each["text"] for each in one.right] == ["memory 3"]
    assert one.wrong
    assert all(each["occurred_start"] <= "2026-01-12" and each["text"] != "memory 3" for each in one.wrong)


WORDS = "cat tea boat work city rain song bread moved sleeps Ruby at Zenith Aurora".split()
WRONG = [" ".join(WORDS[n:] + WORDS[:n]) for n in range(len(WORDS))]


@pytest.fixture
def hardest(makers, tmp_path, tiny_onnx, monkeypatch):
    """Makes lists of one question, with limits of our own."""
    import hard_negatives as hardest

    monkeypatch.setattr(hardest, "ASKED_AGAIN", {"asked": 5})

    def make(query="Where does Ruby work?", **limits):
        for name, value in {"DOUBTFUL": 1e9, "NEAR": len(WRONG), **limits}.items():
            monkeypatch.setattr(hardest, name, value)
        candidates = [{"text": "Ruby works at Zenith.", "label": 1}, *({"text": t, "label": 0} for t in WRONG)]
        with gzip.open(tmp_path / "asked.jsonl.gz", "wt") as stream:
            stream.write(json.dumps({"query": query, "candidates": candidates}) + "\n")
        return hardest.make(tmp_path, tmp_path, str(tiny_onnx), random.Random(1))

    return make


def test_the_hardest_wrong_memories_are_those_the_model_ranks_highest(hardest, tiny_onnx):
    (made,) = hardest(KEPT=4)
    scores = Model.load(tiny_onnx).score(made.query, [Memory(text) for text in WRONG]).raw
    best = sorted(range(len(WRONG)), key=lambda i: -scores[i])[:4]
    assert [each["text"] for each in made.wrong] == [WRONG[i] for i in best]
    assert [each["text"] for each in made.right] == ["Ruby works at Zenith."]


def test_of_many_wrong_memories_some_near_and_some_far_are_read(hardest):
    (made,) = hardest(NEAR=2, FAR=1)
    assert len(made.wrong) == 3


def test_what_the_model_knows_what_is_doubtful_and_what_is_too_long_is_left_out(hardest):
    assert hardest(KNOWN=-1e9, KEPT_KNOWN=0) == []
    assert hardest(DOUBTFUL=-1e9, WELL=-1e9, KNOWN=7.0) == []
    assert hardest(query="Ruby " * 90, KNOWN=7.0) == []


RIGHT_TEXT = (
    "The house by the river is very old.",
    "Ruby moved to Porto in the spring.",
    "Her cats like the garden there.",
)
WRONG_TEXT = ("Max stayed where he was born.", "Ruby wrote to him every single week.", "He never answered any of it.")


@pytest.fixture
def closer(makers, tmp_path, tiny_onnx, monkeypatch):
    """The excerpts that a tiny model finds best in a question's texts, with other settings."""
    import best_excerpts as closer

    monkeypatch.setattr(closer, "READ", {"asked": 5})

    def make(*wrong, query="Where did Ruby move, to Porto?", **settings):
        for name, value in {"FOUND": -1e9, "DOUBTFUL": 1e9, "KNOWN": 1e9, **settings}.items():
            monkeypatch.setattr(closer, name, value)
        texts = [" ".join(RIGHT_TEXT), *wrong]
        labelled = [{"text": t, "occurred_start": "2024-05", "label": int(t is texts[0])} for t in texts]
        with gzip.open(tmp_path / "asked.jsonl.gz", "wt") as stream:
            stream.write(json.dumps({"query": query, "candidates": labelled}) + "\n")
        return closer.make(tmp_path, tmp_path, str(tiny_onnx), random.Random(1))

    return make


def test_of_each_text_the_excerpt_counts_that_the_model_finds_best(closer, tiny_onnx):
    (made,) = closer(" ".join(WRONG_TEXT), "Porto is a town.")

    def best(*excerpts):
        return excerpts[Model.load(tiny_onnx).score(made.query, [Memory(text) for text in excerpts]).raw.argmax()]

    (right,) = made.right
    assert right["text"] == best(" ".join(RIGHT_TEXT[:2]), " ".join(RIGHT_TEXT[1:]))
    misleading = best(" ".join(WRONG_TEXT[:2]), " ".join(WRONG_TEXT[1:]))
    assert {each["text"] for each in made.wrong} == {misleading, "Porto is a town."}
    assert {each["occurred_start"] for each in (right, *made.wrong)} == {"2024-05"}


def test_no_excerpt_is_right_and_wrong(closer):
    (made,) = closer(" ".join([*RIGHT_TEXT, "It rains there all the year round."]), " ".join(WRONG_TEXT))
    assert made.right[0]["text"] not in {each["text"] for each in made.wrong}


def test_nothing_is_made_where_nothing_was_found_all_is_doubtful_short_or_the_question_too_long(closer):
    assert closer(" ".join(WRONG_TEXT), FOUND=1e9) == []
    assert closer(" ".join(WRONG_TEXT), DOUBTFUL=-1e9) == []
    assert closer(" ".join(WRONG_TEXT), KNOWN=-1e9, KEPT_KNOWN=0) == []
    assert closer(" ".join(WRONG_TEXT), query="Ruby " * 90) == []
    assert closer() == []


def said(name):
    """A session's turns, each long enough to tell the session from others."""
    return [
        {"role": role, "content": f"I and my {name} {number}, as the {role} has it, are here for twelve long days."}
        for number in range(3)
        for role in ("user", "assistant")
    ]


def longmemeval_row(question, evidence, sessions):
    return {
        "question_id": question,
        "question": f"What of my {evidence}?",
        "answer": evidence,
        "answer_session_ids": [evidence],
        "haystack_session_ids": list(sessions),
        "haystack_sessions": list(sessions.values()),
    }


@pytest.fixture
def of_dialogue(makers, tmp_path):
    """Texts of all that is made of LongMemEval's rows."""
    import longmemeval as dialogue

    def made(*rows):
        path = tmp_path / "rows.json.gz"
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
        lists = [one for part in dialogue.make(path, random.Random(1)).values() for one in part]
        assert lists
        return " ".join(f"{one.query} {Memory.of(each).text}" for one in lists for each in (*one.right, *one.wrong))

    return made


def question_id(*, dev):
    """A dev question's id, or another; that of its twin is of no dev question."""
    from lists import number

    def is_dev(name):
        return number(name) % 3 == 0

    return next(name for name in map(str, range(99)) if is_dev(name) == dev and not is_dev(f"{name}_abs"))


def test_a_dev_questions_evidence_is_hidden_under_any_name(ask, of_dialogue):
    from agent_questions import WINDOW, key
    from longmemeval import _windows

    evidence, others = said("parrot"), {f"s{n}": said(f"cat{n}") for n in range(4)}
    again = [{"role": "user", "content": "Hello!"}, *evidence[2:4]]
    windows = [window.text for turns in (evidence, others["s1"]) for window in _windows(turns, WINDOW)]
    ask(*({"about": "session", "query": "what of it?", "of": [key(window)]} for window in windows))
    polite = {"role": "user", "content": "Thank you!"}  # a short turn stands in many sessions, and tells nothing
    seen = {"1": evidence, "1_abs": again, **others, "s5": [polite, *said("dog")]}
    text = of_dialogue(
        longmemeval_row(question_id(dev=True), "answer_1", {"answer_1": [*evidence, polite], **others}),
        longmemeval_row(question_id(dev=False), "s1", seen),
    )
    assert "cat1" in text
    assert "dog" in text
    assert "parrot" not in text


def test_a_dev_questions_twin_is_not_trained_on(ask, of_dialogue):
    ask()
    name = question_id(dev=True)
    own = {"answer_2": said("parrot"), "s8": said("goose"), "s9": said("gander")}
    others = {f"s{n}": said(f"cat{n}") for n in range(4)}
    text = of_dialogue(
        longmemeval_row(name, "answer_1", {"answer_1": said("horse"), **others}),
        longmemeval_row(f"{name}_abs", "answer_2", own),
        longmemeval_row(question_id(dev=False), "s1", others),
    )
    assert "cat" in text
    assert "parrot" not in text
    assert "goose" not in text


def test_the_same_lists_are_the_same_bytes(makers, tmp_path, monkeypatch):
    import importlib.util
    import time

    from lists import MadeList

    path = Path(__file__).parents[2] / "research" / "mini_data" / "__main__.py"
    spec = importlib.util.spec_from_file_location("mini_data_main", path)
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    for day, folder in enumerate(("one", "other")):
        (tmp_path / folder).mkdir()
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda day=day: 1e9 + 86400 * day)
            main.write(tmp_path / folder, "x", [MadeList("where?", ["here"], ["there"])])
    one, other = (tmp_path / folder / "x.jsonl.gz" for folder in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert json.loads(gzip.decompress(one.read_bytes()))["query"] == "where?"


def test_a_teacher_scores_by_its_likest_tokens(makers, tiny_bert):
    import distillation as taught
    import torch
    from transformers import AutoModel, AutoTokenizer

    record = {
        "query": "where does ruby work",
        "candidates": [
            {"text": "ruby work at aurora", "label": 1.0, "type": "world"},
            {"text": "the cat", "label": 0.0},
            {"text": "where does ruby work", "label": 0.0},
        ],
    }
    (made,) = taught.taught([record], taught.Encoder(str(tiny_bert)))
    tokenizer, model = AutoTokenizer.from_pretrained(tiny_bert), AutoModel.from_pretrained(tiny_bert).eval()

    def unit(text):
        with torch.inference_mode():
            found = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:-1]
        return found / found.norm(dim=-1, keepdim=True)

    expected = 40 * (unit(record["query"]) @ unit("ruby work at aurora").T).max(dim=1).values.mean().item() + 2
    (right,) = made.right
    assert right["teacher_score"] == pytest.approx(expected, abs=0.05)
    assert right["type"] == "world"
    assert made.wrong[1]["teacher_score"] == pytest.approx(40, abs=0.05)
    assert made.candidates()[0]["label"] == 1


def test_a_dev_questions_paragraph_is_left_out_however_it_is_written(ask, monkeypatch, tmp_path):
    ask()
    import wiki_paragraphs as paragraphs

    def row(name, *context):
        return {"_id": name, "question": "where?", "context": context, "supporting_facts": [[context[0][0], 0]]}

    count = " was a count of the old line, who held the castle by the bridge for thirty years and left it to his son."
    known, respelled = f"Blois (1345-1404){count}", f"Blois( 1345- 1404){count}"
    town = "Town {0} lies by the river and has a mill, a church, a school, a market on Fridays and {0} inns."
    others = [[f"Town {n}", [town.format(n)]] for n in range(6)]
    rows = [row("1", ["Count", [known]], *others[:2]), row("2", *others[2:], ["Count", [respelled]])]
    path = tmp_path / "2wiki.json.gz"
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    monkeypatch.setattr(paragraphs, "DEV_QUESTIONS", 1)
    monkeypatch.setattr(paragraphs, "number", int)

    made = paragraphs.make(path, random.Random(1))

    texts = str([made[name] for name in ("ict", "title", "bridge")])
    assert "Town" in texts
    assert "1345" not in texts
