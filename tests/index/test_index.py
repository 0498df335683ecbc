"""MemoryIndex: add, update, delete, search."""

import json
import shutil
import threading
from dataclasses import replace
from functools import reduce

import pytest

from mnemorank import ConflictError, InputError, Memory, MemoryIndex, NotFoundError, Options, Reranker, StorageError
from mnemorank.artifact.manifest import read_manifest, write_manifest
from mnemorank.index import store
from tests.helpers.forking import forked
from tests.model.test_prepare import MEMORIES

WORK = {"id": "work", "text": "ruby works at aurora labs", "occurred_start": "2024-03", "type": "world", "user": "ann"}
CAT = {"id": "cat", "text": "the cat lives in berlin", "session": "s1", "metadata": {"pinned": True}}
DOG = {"id": "dog", "text": "a dog in lisbon", "session": "s2", "speaker": "ann"}


def ids(ranking):
    return [result.id for result in ranking]


def test_what_was_added_is_found(index):
    assert index.add([WORK, CAT, DOG]) == ["work", "cat", "dog"]
    ranking = index.search("where does ruby work", now="2025-01-01")
    assert sorted(ids(ranking)) == ["cat", "dog", "work"]
    assert ranking.degraded is None
    assert [result.rank for result in ranking] == [1, 2, 3]
    assert all(result.relevance is not None for result in ranking)
    assert len(index.search("where does ruby work", 1)) == 1


def test_rankings_are_those_of_a_reranker(index, split_onnx):
    options = Options(first_stage="bm25", weights={"first_stage": 1.0, "rescoring": 0.5}, diversity=0.9)
    memories = [replace(memory, id=str(number)) for number, memory in enumerate(MEMORIES) if memory.text.strip()]
    index.add(memories)
    with Reranker(split_onnx) as reranker:
        for query in ("ruby", "the trip to lisbon in march", "database migration plan"):
            found = index.search(query, None, explain=True, options=options, now="2025-01-01")
            expected = reranker.rerank(query, memories, explain=True, options=options, now="2025-01-01")
            by_id = {result.id: result for result in expected}
            assert ids(found) == ids(expected)
            for result in found:
                assert (result.raw_score, result.passage) == (by_id[result.id].raw_score, by_id[result.id].passage)
                assert result.memory == by_id[result.id].memory


def test_search_takes_the_arguments_of_rerank(index):
    index.add([WORK, {"id": "old", "text": "ruby works at zenith", "occurred_start": "2020-01", "key": "job"}])
    index.add([{"id": "new", "text": "ruby works at aurora", "occurred_start": "2023-01", "key": "job"}])
    now = index.search("ruby works", now="2025-01-01")
    assert {result.id for result in now if result.stale} == {"old"}
    past = index.search("ruby works", as_of="2021-01-01", now="2025-01-01")
    assert ids(past)[0] == "old"
    assert not past[0].stale
    with pytest.raises(InputError) as raised:
        index.search("ruby", deadline_ms=0)
    assert raised.value.field == "deadline_ms"
    with pytest.raises(InputError) as raised:
        index.search(" ")
    assert raised.value.field == "query"


def test_a_deadline_degrades_a_search(index):
    index.add([WORK, CAT])
    ranking = index.search("ruby", deadline_ms=1e-6)
    assert ranking.degraded.kind == "deadline"
    assert len(ranking) == 2


def test_an_index_survives_its_process(split_onnx, path, index):
    index.add([WORK, CAT])
    expected = index.search("ruby", now="2025-01-01").to_dict()
    index.close()
    with MemoryIndex.open(path, split_onnx) as again:
        assert again.search("ruby", now="2025-01-01").to_dict() == expected
        assert again.get("work") == Memory.of(WORK)
        assert again.get("nobody") is None


def test_memories_are_encoded_once(split_onnx, path, index, monkeypatch):
    index.add(MEMORIES)
    index.close()
    with MemoryIndex.open(path, split_onnx, threads=1) as again:
        encoded = []
        encode = type(again.model.scorer)._encode
        monkeypatch.setattr(
            type(again.model.scorer), "_encode", lambda self, *args: encoded.append(args[1]) or encode(self, *args)
        )
        again.search("ruby")
        again.search("where is the cat")
        assert set(encoded) == {0}  # queries only


def test_a_memory_with_a_known_id_replaces_the_other(index):
    index.add([WORK, CAT])
    index.add([{**WORK, "text": "ruby works at zenith"}])
    assert len(index) == 2
    assert index.get("work").text == "ruby works at zenith"
    assert index.get("work").metadata == {"user": "ann"}
    assert sorted(ids(index.search("zenith"))) == ["cat", "work"]
    assert index.stats().passages == 2


def test_of_several_with_one_id_the_last_counts(index):
    assert index.add(["a cat", {**WORK, "text": "first"}, WORK])[1:] == ["work", "work"]
    assert len(index) == 2
    assert index.get("work").text == WORK["text"]


def test_memories_without_an_id_get_one(index):
    (first, second) = index.add(["the cat", "a dog"])
    assert first != second
    assert index.get(first).text == "the cat"
    assert index.add(["a dog", "the cat", {"text": "the cat", "type": "event"}])[:2] == [second, first]
    assert len(index) == 3
    index.update([{"id": first, "text": "the cat moved"}])
    assert index.add(["the cat"]) != [first]
    assert index.get(first).text == "the cat moved"


def test_equal_memories_without_an_id_are_one(index):
    first, other, again = index.add(["the cat", "a dog", "the cat"])
    assert first == again != other
    assert index.add([CAT, CAT["text"], {**CAT, "id": None}])[::2] == ["cat", "cat"]
    assert len(index) == 4


def test_a_memory_without_an_id_does_not_undo_a_change_in_the_same_call(index):
    index.add([{"id": "a", "text": "old"}])
    _, id = index.add([{"id": "a", "text": "new"}, "old"])
    assert (index.get("a").text, index.get(id).text) == ("new", "old")


@pytest.mark.parametrize(
    ("memory", "field"),
    [
        (Memory("half \ud800"), "text"),
        (Memory("cat", id="half \ud800"), "id"),
        (Memory("cat", metadata={"a": "half \ud800"}), "metadata"),
        (Memory("cat", metadata={"a": {1, 2}}), "metadata"),
        (Memory("cat", metadata={"a": reduce(lambda inner, _: [inner], range(100_000), [])}), "metadata"),
    ],
    ids=["text", "id", "metadata", "set", "deep"],
)
def test_what_cannot_be_stored_is_refused(index, memory, field):
    with pytest.raises(InputError) as raised:
        index.add(["a dog", memory])
    assert raised.value.field == f"memories.1.{field}"
    assert len(index) == 0


def test_update_changes_known_memories_only(index):
    index.add([WORK])
    index.update([{"id": "work", "text": "ruby is a doctor"}])
    assert index.get("work") == Memory("ruby is a doctor", id="work")
    for memories, field in (([WORK, CAT], "memories.1.id"), (["a text"], "memories.0.id")):
        with pytest.raises(InputError) as raised:
            index.update(memories)
        assert raised.value.field == field
    assert isinstance(raised.value, InputError)
    assert index.get("work").text == "ruby is a doctor"
    with pytest.raises(NotFoundError):
        index.update([CAT])


def test_deleted_memories_are_gone(index, path):
    index.add([WORK, CAT, DOG])
    assert index.search("ruby").results
    assert index.delete(["work", "nobody", "work"]) == 1
    assert index.get("work") is None
    assert sorted(ids(index.search("ruby works at aurora labs"))) == ["cat", "dog"]
    assert index.delete(["cat", "dog"]) == 2
    assert index.search("ruby").results == ()
    assert (len(index), index.stats().passages) == (0, 0)
    with pytest.raises(InputError):
        index.delete("work")


def test_deleted_and_replaced_texts_are_erased_from_the_file(index, path):
    def contains(word):
        return any(word in each.read_bytes() for each in path.parent.glob(f"{path.name}*"))

    index.add([WORK, CAT, DOG])
    assert contains(b"aurora")
    assert contains(b"berlin")
    index.delete(["work"])
    assert not contains(b"aurora")
    index.update([{"id": "cat", "text": "the cat lives in lisbon"}])
    assert not contains(b"berlin")


def test_states_shared_by_two_memories_stay_until_both_are_deleted(index):
    index.add([{"id": "a", "text": "the cat"}, {"id": "b", "text": "the cat"}])
    assert states(index) == 1
    index.delete(["a"])
    assert states(index) == 1
    assert ids(index.search("cat")) == ["b"]
    index.delete(["b"])
    assert states(index) == 0


def states(index):
    with index._store._reading() as connection:
        return connection.execute("SELECT count(*) FROM states").fetchone()[0]


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ({"session": "s1"}, ["cat"]),
        ({"type": "world"}, ["work"]),
        ({"speaker": "ann", "session": "s2"}, ["dog"]),
        ({"user": "ann"}, ["work"]),
        ({"pinned": True}, ["cat"]),
        ({"session": "s3"}, []),
        ({}, ["cat", "dog", "work"]),
        (lambda memory: "session" in memory.metadata, ["cat", "dog"]),
    ],
    ids=["session", "type", "two", "user", "bool", "nobody", "empty", "function"],
)
def test_filters(index, filter, expected):
    index.add([WORK, CAT, DOG])
    assert sorted(ids(index.search("where is the cat", filter=filter))) == expected


def test_a_filter_finds_memories_far_down_the_list(index):
    index.add([{"id": f"cat-{n}", "text": f"the cat {n}", "n": n} for n in range(300)])
    index.add([{"id": "far", "text": "rust database migration plan in january", "n": 300}])
    assert ids(index.search("the cat", filter={"n": 300}, candidates=3)) == ["far"]
    assert len(index.search("the cat", None, candidates=3)) <= 6


def test_filters_by_text_read_few_records(index, monkeypatch):
    """The names of users are in the texts of others, too, and need escapes in JSON."""
    users = ['ann "the cat"', "bö\\b", "a\nb", "喝茶", "a\0b"]
    index.add([{"id": f"{n}", "text": f"the cat {n}", "user": users[n % 5], "type": "world"} for n in range(600)])
    index.add([{"id": "talk", "text": f"the cat {users[0]}", "user": "carl"}])
    decoded = []
    decode = store._decode
    monkeypatch.setattr(store, "_decode", lambda id, *rest: decoded.append(id) or decode(id, *rest))
    for number, user in enumerate(users):
        decoded.clear()
        found = index.search("the cat", filter={"user": user, "type": "world"}, candidates=3)
        assert {int(id) % 5 for id in ids(found)} == {number}
        assert len(set(decoded)) <= 120
    decoded.clear()
    assert ids(index.search("the cat", filter={"id": "talk"})) == ["talk"]
    assert set(decoded) == {"talk"}
    assert ids(index.search("the cat", filter={"user": "half \ud800"})) == []


def test_as_many_results_as_asked_for(index):
    index.add([f"the cat {n}" for n in range(80)])
    assert len(index.search("the cat", 70)) == 70
    assert len(index.search("the cat", 5, candidates=3)) == 5
    assert len(index.search("the cat", 10**30)) == 80
    assert len(index.search("the cat", None)) == 64


@pytest.mark.parametrize("filter", ["session", ["s1"], {1: "a"}], ids=str)
def test_bad_filters_are_refused(index, filter):
    with pytest.raises(InputError) as raised:
        index.search("cat", filter=filter)
    assert raised.value.field == "filter"


def test_candidates_come_by_words_too(index):
    """With random weights, meaning alone would miss it."""
    index.add([f"{n} the dog and the doctor, {n}" for n in range(200)])
    index.add([{"id": "rare", "text": "quixotic zebra 7 at the lab"}])
    assert "rare" in ids(index.search("which zebra is quixotic?", None, candidates=2))


def test_words_of_any_script_are_found(index):
    texts = {
        "zh": "我喜欢喝茶",
        "hi": "मुझे चाय पसंद है",
        "de": "Die Übergröße gefällt mir",
        "en": "O'Brien's well-known café",
    }
    index.add([{"id": id, "text": text} for id, text in texts.items()])
    for id, query in (("zh", "喝茶"), ("hi", "चाय"), ("de", "übergröße"), ("en", "o'brien café")):
        assert index._store.with_words(query)[0] == list(texts).index(id) + 1
    assert index._store.with_words('" OR (') == []


def test_without_fts5_our_own_bm25_is_used(split_onnx, tmp_path, monkeypatch):
    create = store._KIND.create
    monkeypatch.setattr(
        store, "_KIND", replace(store._KIND, create=lambda c: (create(c), c.execute("DROP TABLE words")))
    )
    with MemoryIndex.open(tmp_path / "plain.db", split_onnx) as index:
        index.add([f"{n} the dog and the doctor, {n}" for n in range(50)])
        index.add([{"id": "rare", "text": "quixotic zebra"}])
        assert index._store.with_words("a quixotic question") == [51]
        assert "rare" in ids(index.search("which zebra is quixotic?", None, candidates=2))
        index.delete(["rare"])
        assert index._store.with_words("a quixotic question") == []


def test_long_queries_are_searched(index):
    index.add([WORK, CAT])
    ranking = index.search("the cat and the dog " * 200 + "where does ruby work")
    assert ranking.degraded is None
    assert ranking.warnings


def test_empty_memories_are_kept_but_not_found(index):
    index.add([{"id": "blank", "text": " "}, CAT])
    assert index.get("blank").text == " "
    assert ids(index.search("cat")) == ["cat"]


def test_bad_memories_add_nothing(index):
    for bad, field in (
        ({"text": 5}, "memories.1.text"),
        (Memory("a", metadata={"x": object()}), "memories.1.metadata"),
    ):
        with pytest.raises(InputError) as raised:
            index.add([WORK, bad])
        assert raised.value.field == field
    assert len(index) == 0


def test_other_processes_see_changes_at_once(index, split_onnx, path):
    index.add([WORK])
    assert ids(index.search("ruby")) == ["work"]
    with MemoryIndex.open(path, split_onnx) as other:
        other.add([CAT])
        assert sorted(ids(index.search("ruby"))) == ["cat", "work"]
        other.delete(["work"])
        assert ids(index.search("ruby")) == ["cat"]
        other.update([{**CAT, "text": "the cat moved to lisbon"}])
        assert index.search("ruby")[0].text == "the cat moved to lisbon"


def test_forked_processes_share_an_index(index):
    index.add([WORK])

    def use():
        index.add([CAT])
        return sorted(ids(index.search("ruby")))

    assert forked(use) == ["cat", "work"]
    assert sorted(ids(index.search("ruby"))) == ["cat", "work"]


def test_threads_add_and_search_at_once(index):
    failures = []

    def work(number):
        try:
            for turn in range(5):
                index.add([{"id": f"{number}-{turn}", "text": f"the cat {number} {turn}"}])
                index.search("cat")
                if turn % 2:
                    index.delete([f"{number}-{turn}"])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(index) == 12
    assert len(index.search("cat", None)) == 12


def test_models_that_are_not_split_are_refused(path, folder):
    with pytest.raises(InputError) as raised:
        MemoryIndex.open(path, folder)
    assert (raised.value.field, raised.value.code) == ("model", "not_split")
    assert not path.exists()


@pytest.fixture
def other_model(split_onnx, tmp_path):
    def make(**changes):
        target = tmp_path / f"other-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(split_onnx, target)
        manifest = read_manifest(target / "mnemorank.json")
        write_manifest(target, replace(manifest, **changes), list(manifest.files))
        return target

    return make


def test_a_new_version_of_the_model_reads_all_memories_again(index, path, other_model):
    index.add([WORK, CAT, *MEMORIES])
    before = index.stats()
    index.close()
    with MemoryIndex.open(path, other_model(max_length=48)) as again:
        assert len(again) == before.memories
        assert again.stats().passages > before.passages  # long memories have more and shorter windows
        assert {"work", "cat"} <= set(ids(again.search("ruby", None)))
        with again._store._reading() as connection:
            assert len(connection.execute("SELECT DISTINCT model FROM memories").fetchall()) == 1
            assert len(connection.execute("SELECT DISTINCT model FROM states").fetchall()) == 1


def test_another_calibration_reads_nothing_again(index, path, other_model, monkeypatch):
    index.add([WORK])
    index.close()
    monkeypatch.setattr(MemoryIndex, "_write", lambda *_: pytest.fail("read again"))
    with MemoryIndex.open(path, other_model(version="9", abstain_below=0.3)) as again:
        assert ids(again.search("ruby")) == ["work"]


def test_a_model_of_another_name_needs_consent(index, path, other_model):
    index.add([WORK])
    index.close()
    other = other_model(name="another", max_length=48)
    with pytest.raises(ConflictError) as raised:
        MemoryIndex.open(path, other)
    assert raised.value.code == "other_model"
    with MemoryIndex.open(path, other, reindex=True) as again:
        assert ids(again.search("ruby")) == ["work"]
        assert again.stats().model == "another"
    MemoryIndex.open(path, other).close()


def test_an_index_that_does_not_exist_is_created_or_refused(split_onnx, tmp_path):
    with pytest.raises(NotFoundError):
        MemoryIndex.open(tmp_path / "none.db", split_onnx, create=False)
    assert list(tmp_path.iterdir()) == []
    with MemoryIndex.open(tmp_path / "deep/er/new.db", split_onnx) as index:
        assert len(index) == 0
        assert index.search("ruby").results == ()


def test_other_files_are_refused_and_left_alone(split_onnx, path):
    path.write_text(json.dumps(WORK))
    for create in (True, False):
        with pytest.raises(StorageError):
            MemoryIndex.open(path, split_onnx, create=create)
    assert json.loads(path.read_text()) == WORK


def test_stats(index, path):
    index.add([WORK, *MEMORIES[3:5]])
    stats = index.stats()
    assert (stats.memories, stats.model) == (3, "tiny-split")
    assert stats.passages > 10
    assert stats.bytes == path.stat().st_size


def test_all_memories_in_the_order_in_which_they_were_added(index):
    ids = index.add([{"id": f"m{i}", "text": f"the cat {i}"} for i in range(300)])
    index.delete(["m7"])
    assert [memory.id for memory in index.memories()] == [id for id in ids if id != "m7"]
