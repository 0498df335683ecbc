from __future__ import annotations

import random

import agent_texts
import pytest

from mnemorank.memory.memory import Memory


@pytest.fixture(scope="module")
def lists():
    return agent_texts.make(random.Random(1))


def texts_of(lists):
    return {Memory.of(each).text for made in lists for each in (*made.positives, *made.negatives)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passages", "articles", "articles-dev", "personas", "hops"])
def test_lists_are_complete(lists, name):
    assert len(lists[name]) > 300
    for made in lists[name]:
        assert made.query.strip()
        assert made.positives
        assert len(made.negatives) >= 3
        assert all(memory not in made.negatives for memory in made.positives)
        assert all(Memory.of(each).text for each in made.candidates())
        # Either all memories of a list have dates, or none.
        memories = (*made.positives, *made.negatives)
        assert len({isinstance(each, dict) and "occurred_start" in each for each in memories}) == 1
    queries = [made.query for made in lists[name]]
    assert len(set(queries)) > 0.99 * len(queries)


@pytest.mark.slow
def test_held_out_articles_share_no_topic_with_the_training_data(lists):
    held_out, trained = texts_of(lists["articles-dev"]), texts_of(lists["articles"] + lists["passages"])
    assert len(held_out) > 200
    assert held_out.isdisjoint(trained)
    assert all(len(made.negatives) == 11 for made in lists["articles-dev"])
    assert all(len(made.negatives) == 8 for made in lists["articles"])
    topics = {Memory.of(t).text: topic["topic"] for topic in agent_texts._read("passages") for t in topic["passages"]}
    assert {topics[text] for text in held_out}.isdisjoint(topics[text] for text in trained)


@pytest.mark.slow
def test_each_memory_of_a_decoy_scene_is_relevant_equally_often():
    made = agent_texts.make_decoy_lists()
    scenes = list(agent_texts._read("decoys"))
    assert len(scenes) > 1500
    for scene in scenes:
        assert sorted(question["right"] for question in scene["questions"]) in ([0, 1, 2, 3], [0, 0, 1, 1, 2, 2, 3, 3])
        assert len({memory["text"] for memory in scene["memories"]}) == 4
    assert sum(map(len, made.values())) == sum(len(scene["questions"]) + 1 for scene in scenes)
    assert not any(each.positives for each in made["decoys-none"])
    assert all(len(each.positives) == 1 and len(each.negatives) == 3 for each in made["decoys"])
    assert made["decoys-dev"]
    assert made["decoys-test"]
    assert all(Memory.of(memory).text for each in made["decoys"] for memory in each.candidates())
    trained = {memory["text"] for each in made["decoys"] for memory in each.positives}
    assert texts_of(made["decoys-dev"] + made["decoys-test"]).isdisjoint(trained)


@pytest.mark.slow
def test_conversations_and_threads_are_complete_and_held_out_ones_are_separate():
    lists = agent_texts.make_conversation_lists(random.Random(1)) | agent_texts.make_thread_lists(random.Random(1))
    for name, part in lists.items():
        assert len(part) > 50
        for made in part:
            assert made.query.strip()
            assert made.negatives
            assert all(memory not in made.negatives for memory in made.positives)
            assert all(Memory.of(each).mentioned_at for each in (*made.positives, *made.negatives))
        is_answerable = {bool(made.positives) for made in part}
        is_held_out = name.endswith(("-dev", "-test"))
        assert is_answerable == ({True, False} if is_held_out else {not name.endswith("-none")})
    for kind in ("conversations", "threads"):
        trained = {text.removeprefix("user: ") for text in texts_of(lists[kind])}
        held_out = lists[f"{kind}-dev"] + lists.get(f"{kind}-test", [])
        assert trained.isdisjoint(each["text"].removeprefix("user: ") for made in held_out for each in made.positives)


def test_questions_about_a_conversation_name_existing_turns():
    conversation = next(iter(agent_texts._read("conversations")))
    names = {name for name, _ in agent_texts.conversation_turns(conversation)}
    assert all(set(question["right"]) <= names for question in conversation["questions"])


def test_the_turns_next_to_the_relevant_ones_are_negatives():
    turns = list(agent_texts.conversation_turns(next(iter(agent_texts._read("conversations")))))
    names = [name for name, _ in turns]
    position = names.index("2:5")
    assert agent_texts.adjacent_turns(turns, ["2:5"]) == [turns[position - 1][1], turns[position + 1][1]]
    assert agent_texts.adjacent_turns(turns, [names[0], names[1]]) == [turns[2][1]]


def test_the_negatives_of_a_persona_are_earlier_memories():
    for persona in agent_texts._read("personas"):
        for turn, made in zip(persona["turns"], agent_texts._persona_lists(persona), strict=True):
            assert all(each["occurred_start"] <= turn["query_time"] for each in made.negatives)
