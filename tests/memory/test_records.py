"""Records of real stores: odd values, hits, rows, documents."""

import sqlite3
from collections import namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest

from mnemorank import InputError, Memory, Moment
from mnemorank.memory.memory import read_memories

AT = datetime(2024, 3, 5, 10, tzinfo=UTC)


class ObjectId:
    def __str__(self):
        return "65f0c0ffee"


class Kind(Enum):
    WORLD = "world"


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        ({"id": UUID(int=7)}, "id", str(UUID(int=7))),
        ({"_id": ObjectId()}, "id", "65f0c0ffee"),
        ({"id": np.int64(7)}, "id", "7"),
        ({"uuid": "e1"}, "id", "e1"),
        ({"created_at": 1709632800}, "mentioned_at", Moment.parse(AT)),
        ({"timestamp": 1709632800000}, "mentioned_at", Moment.parse(AT)),
        ({"timestamp": "1709632800"}, "mentioned_at", Moment.parse(AT)),
        ({"valid_at": AT}, "occurred_start", Moment.parse(AT)),
        ({"confidence": 95}, "confidence", 95.0),
        ({"confidence": "high"}, "metadata", {"confidence": "high"}),
        ({"entities": [{"name": "Ann"}, {"text": "Bob"}, {"entity": "Cy"}]}, "entities", ("Ann", "Bob", "Cy")),
        ({"entities": np.array(["Ann", "Bob"])}, "entities", ("Ann", "Bob")),
        ({"entities": {"Bob", "Ann"}}, "entities", ("Ann", "Bob")),
        ({"context": ["work", "Berlin"]}, "context", "work, Berlin"),
        ({"context": []}, "context", None),
        ({"type": Kind.WORLD}, "type", "world"),
        ({"score": Decimal("0.25")}, "first_stage_score", 0.25),
        ({"score": np.float32(0.25)}, "first_stage_score", 0.25),
        ({"_score": 11.5}, "first_stage_score", 11.5),
        ({"distance": 0.2}, "first_stage_score", -0.2),
        ({"_distance": 0.2}, "first_stage_score", -0.2),
        ({"distance": 0.2, "score": 0.8}, "first_stage_score", 0.8),
        ({"trust": float("nan"), "proof_count": float("nan")}, "trust", None),
        ({"trust": "nan", "proof_count": "nan"}, "trust", None),
        ({"trust": Decimal("NaN"), "proof_count": "NaN"}, "proof_count", None),
        ({"occurred_end": float("nan"), "occurred_start": 2024}, "occurred_start", Moment(2024)),
        ({"occurred_end": np.datetime64("NaT"), "type": float("nan")}, "occurred_end", None),
        ({"metadata": None}, "metadata", {}),
    ],
)  # fmt: skip
def test_values_of_real_stores(record, field, value):
    problems = []
    assert getattr(Memory.of({"text": "a", **record}, report=problems.append), field) == value
    assert not problems


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"id": ["a", "b"]}, "memories.0.id"),
        ({"entities": [{"label": "PERSON"}]}, "memories.0.entities"),
        ({"context": {"a": 1}}, "memories.0.context"),
        ({"distance": "far"}, "memories.0.distance"),
        ({"document": {"body": "b"}, "text": None}, "memories.0.document"),
    ],
)
def test_errors_name_the_field(record, field):
    with pytest.raises(InputError) as caught:
        read_memories([{"text": "a", **record}])
    assert caught.value.field == field


def test_an_error_suggests_the_path_of_a_nested_text():
    with pytest.raises(InputError, match=r'field="document\.text"'):
        read_memories([{"document": {"body": "b"}}])


HIT = {"id": 7, "score": 0.9}
FOUND = {"text": "Ruby works at Aurora", "created_at": "2024-03", "type": "world", "key": "job", "id": "inner"}


@pytest.mark.parametrize("holder", ["metadata", "payload", "_source", "properties", "entity", "fields", "value"])
@pytest.mark.parametrize("shape", [dict, lambda hit: SimpleNamespace(**hit, vector=[0.1], version=3)])
def test_all_fields_are_read_from_the_holder_of_the_text(holder, shape):
    memory = Memory.of(shape({**HIT, holder: FOUND}))
    assert memory == Memory(
        "Ruby works at Aurora", id="7", type="world", mentioned_at=Moment(2024, 3), first_stage_score=0.9,
        metadata={"store_key": "job", "id": "inner"},
    )  # fmt: skip


def test_a_payload_next_to_the_text_gives_only_dates_and_score():
    memory = Memory.of({"text": "a", "payload": {"created_at": "2024", "type": "pdf", "text": "b"}})
    assert (memory.text, memory.mentioned_at, memory.type) == ("a", Moment(2024), None)
    assert memory.metadata == {"created_at": "2024", "type": "pdf", "text": "b"}


def test_bad_values_of_a_hit_are_reported_and_not_raised():
    problems = []
    payload = {"text": "a", "start_date": "2020", "end_date": "open", "type": ["x"], "trust": 95}
    memory = Memory.of({"id": 1, "payload": payload}, path="memories.4", report=problems.append)
    assert (memory.date, memory.type, memory.trust) == (None, None, None)
    assert sorted(problem.split(": ")[0] for problem in problems) == [
        "memories.4.payload.end_date",
        "memories.4.payload.trust",
        "memories.4.payload.type",
    ]
    reversed_range = {"text": "a", "metadata": {"start_date": "2024", "end_date": "2023"}}
    assert Memory.of(reversed_range, report=problems.append).date is None


@pytest.mark.parametrize(
    "record",
    [
        {"payload": {"body": "right", "text": "wrong"}},
        {"payload.body": "right", "text": "wrong"},
        SimpleNamespace(payload={"body": "right"}),
    ],
)
def test_the_text_field_can_be_a_path(record):
    assert Memory.of(record, field="payload.body").text == "right"


def test_paths_can_be_deep_and_start_at_attributes():
    assert Memory.of({"document": {"text": "a", "created_at": "2024"}}, field="document.text") == Memory(
        "a", mentioned_at=Moment(2024)
    )
    assert Memory.of({"a": {"b": {"c": "deep"}}}, field="a.b.c").text == "deep"
    assert Memory.of({"metadata": {"body": "a"}}, field="body").text == "a"
    assert Memory.of(SimpleNamespace(body="a", id=1), field="body") == Memory("a", id="1")


@pytest.mark.parametrize("field", [None, "payload.text", "title.x"])
def test_the_error_of_a_hit_without_text_lists_its_fields(field):
    with pytest.raises(InputError, match=r"id, payload\.title$") as caught:
        read_memories([{"id": 1, "payload": {"title": "a"}}], field=field)
    assert (caught.value.field, caught.value.code) == ("memories.0", "missing")


class Document:
    """Like LangChain's."""

    type = "Document"

    def __init__(self, page_content, **metadata):
        self.page_content, self.metadata, self.id = page_content, metadata, None


@pytest.mark.parametrize(
    "record", ["a", {"text": "a", "score": 0.1}, Document("a", score=0.1), Memory("a"), SimpleNamespace(text="a")]
)
@pytest.mark.parametrize("score", [0.7, np.float32(0.7), Decimal("0.7")])
def test_a_record_with_its_score(record, score):
    memory = Memory.of((record, score))
    assert (memory.text, memory.type) == ("a", None)
    assert memory.first_stage_score == pytest.approx(0.7)


def test_a_record_without_its_score():
    assert Memory.of(({"text": "a", "score": 0.1}, None)).first_stage_score == 0.1
    with pytest.raises(InputError, match="tuple") as caught:
        read_memories([("a", "b")])
    assert caught.value.field == "memories.0"


def test_rows_of_databases():
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    row = connection.execute("SELECT 7 AS id, 'a' AS content, 0.2 AS distance").fetchone()
    connection.close()
    expected = Memory("a", id="7", first_stage_score=-0.2)
    assert Memory.of(row) == expected
    assert Memory.of(namedtuple("Row", "id content distance")(7, "a", 0.2)) == expected
    assert Memory.of(namedtuple("Row", "content distance")("a", 0.2)) == Memory("a", first_stage_score=-0.2)
    item = SimpleNamespace(id=7, content="a", metadata=object())
    assert Memory.of(namedtuple("Row", "Item distance")(item, 0.2)) == expected
    assert Memory.of(namedtuple("Row", "Item score")(item, 0.2)).first_stage_score == 0.2


@pytest.mark.parametrize(
    ("pool", "named"),
    [
        ({"ids": [["a"]], "documents": [["x"]]}, r'\[\{"id": i, "text": t'),
        ({"results": [{"memory": "a"}]}, "dict; pass its `results`"),
        (SimpleNamespace(points=[]), "SimpleNamespace; pass its `points`"),
        (SimpleNamespace(columns=["text"]), "pass its rows"),
        (Document("a"), "a single Document"),
        (5, "int"),
    ],
)
def test_an_error_says_what_to_pass_instead_of_a_response(pool, named):
    with pytest.raises(InputError, match=named) as caught:
        read_memories(pool)
    assert caught.value.field == "memories"


def test_the_code_suggested_for_chroma_works():
    result = {"ids": [["a"]], "documents": [["x"]], "metadatas": [[None]], "distances": [[0.25]], "embeddings": None}
    with pytest.raises(InputError) as caught:
        read_memories(result)
    code = str(caught.value).partition("; pass ")[2]
    assert read_memories(eval(code, {"result": result})) == [Memory("x", id="a", first_stage_score=-0.25)]


def test_the_stores_of_the_docs():
    """The recipes of docs/guides/memories.md: data of those shapes."""
    chroma = {"ids": [["1"]], "documents": [["a"]], "metadatas": [[{"created_at": 1709632800}]], "distances": [[0.2]]}
    columns = (chroma[name][0] for name in ("ids", "documents", "metadatas", "distances"))
    row = {"id": UUID(int=1), "content": "a", "created_at": AT, "distance": 0.2}
    point = SimpleNamespace(
        id=1, version=3, score=0.8, payload={"body": "a", "created_at": AT.isoformat()}, vector=None
    )
    mem0 = {"id": "1", "memory": "a", "hash": "x", "metadata": None, "score": 0.8, "created_at": AT.isoformat()}
    pools = {
        "pgvector": read_memories([row]),
        "qdrant": read_memories([point], field="payload.body"),
        "pinecone": read_memories([{"id": "1", "score": 0.8, "values": [], "metadata": {"text": "a", "date": AT}}]),
        "chroma": read_memories(
            [{"id": i, "text": t, "metadata": m, "distance": d} for i, t, m, d in zip(*columns, strict=True)]
        ),
        "langchain": read_memories([(Document("a", created_at=AT), 0.8)]),
        "mem0": read_memories([mem0]),
    }
    for name, (memory,) in pools.items():
        score = -0.2 if name in ("pgvector", "chroma") else 0.8
        assert (memory.text, memory.mentioned_at, memory.first_stage_score) == ("a", Moment.parse(AT), score), name


def test_key_counts_in_dicts_of_our_own_format():
    """`metadata["key"]` is what supersession reads: memories of the same key are about the same matter."""
    record = {"text": "Ruby works at Zenith", "key": "job"}
    assert Memory.of(record).metadata == {"key": "job"}
    assert Memory.of({"text": "Ruby works at Zenith", "metadata": {"key": "job"}}).metadata == {"key": "job"}
    memory = Memory("Ruby works at Zenith", metadata={"key": "job"})
    assert Memory.of(memory.to_dict()).metadata == {"key": "job"}


@pytest.mark.parametrize(
    "record",
    [
        SimpleNamespace(text="Ruby works at Zenith", key="note-7"),
        {"content": "Ruby works at Zenith", "key": "note-7"},
        {"id": "m1", "memory": "Ruby works at Zenith", "metadata": {"key": "note-7", "memory_type": "fact"}},  # MemOS
        SimpleNamespace(id="m1", memory="Ruby works at Zenith", key="note-7"),
        Document("Ruby works at Zenith", key="note-7"),
        namedtuple("Row", "text key")("Ruby works at Zenith", "note-7"),
        {"id": 1, "payload": {"text": "Ruby works at Zenith", "key": "note-7"}},
    ],
)
def test_the_key_of_another_store_is_not_our_key(record):
    memory = Memory.of(record)
    assert "key" not in memory.metadata
    assert memory.metadata["store_key"] == "note-7"
    assert "key" not in Memory.of(memory.to_dict()).metadata


def test_explicit_supersession_of_an_object_is_read():
    fact = SimpleNamespace(text="Ruby works at Zenith", superseded_by="7", supersedes=["3"])
    assert Memory.of(fact).metadata == {"superseded_by": "7", "supersedes": ["3"]}


class SearchItem:
    """Like LangGraph's, which has slots and no dict."""

    __slots__ = ("created_at", "key", "namespace", "score", "updated_at", "value")

    def __init__(self, namespace, key, value, score=None):
        self.namespace, self.key, self.value, self.score = namespace, key, value, score
        self.created_at = self.updated_at = AT

    def dict(self):
        return {name: getattr(self, name) for name in self.__slots__}


@pytest.mark.parametrize(
    "value",
    [
        {"text": "Ruby likes tea"},
        {"content": "Ruby likes tea", "kind": "note"},
        {"memory": "Ruby likes tea"},
        {"data": "Ruby likes tea"},
        {"kind": "Memory", "content": {"content": "Ruby likes tea"}},  # LangMem
    ],
)
@pytest.mark.parametrize("shape", [lambda item: item, SearchItem.dict])
def test_items_of_langgraphs_store(value, shape):
    memory = Memory.of(shape(SearchItem(("users", "ruby"), "note-7", value, 0.8)))
    assert (memory.text, memory.id, memory.first_stage_score) == ("Ruby likes tea", "users/ruby/note-7", 0.8)
    assert memory.mentioned_at == Moment.parse(AT)
    assert "key" not in memory.metadata
    assert "store_key" not in memory.metadata


def test_a_langgraph_item_without_text_lists_the_fields_of_its_value():
    with pytest.raises(InputError, match=r"value\.food"):
        Memory.of(SearchItem(("users",), "k", {"food": "tea"}))


def test_the_dates_of_a_metadata_object_are_read():
    """MemOS has pydantic objects as metadata."""
    item = SimpleNamespace(id="m1", memory="Ruby likes tea", metadata=SimpleNamespace(key="Tea", updated_at=AT))
    assert Memory.of(item).mentioned_at == Moment.parse(AT)


def test_a_date_under_an_unknown_attribute_is_reported():
    reports = []
    memory = Memory.of(SimpleNamespace(text="Ruby likes tea", createdAt=AT), report=reports.append)
    assert memory.date is None
    assert [report.partition(": ")[0] for report in reports] == ["createdAt"]


def test_metadata_within_a_payload():
    inner = {"key": "job", "occurred_start": "2019", "page": 3}
    hit = {"id": 1, "score": 0.8, "payload": {"page_content": "Ruby works at Zenith.", "metadata": inner}}
    memory = Memory.of(hit)
    assert (memory.occurred_start, memory.first_stage_score) == (Moment(2019), 0.8)
    assert memory.metadata == {"store_key": "job", "occurred_start": "2019", "page": 3}


def test_the_score_of_an_object_whose_metadata_is_an_object():
    hit = SimpleNamespace(properties={"text": "Ruby works"}, metadata=SimpleNamespace(distance=0.3, score=None))
    assert Memory.of(hit).first_stage_score == -0.3


@pytest.mark.parametrize("holder", ["meta", "meta_data"])
def test_dates_of_haystack_and_agno_documents(holder):
    document = SimpleNamespace(id="d1", content="Ruby likes tea", **{holder: {"created_at": AT, "page": 3}})
    memory = Memory.of(document)
    assert (memory.id, memory.mentioned_at, memory.metadata["page"]) == ("d1", Moment.parse(AT), 3)


def test_a_crewai_match():
    record = SimpleNamespace(id="r1", content="Ruby likes tea", created_at=AT, metadata={"valid_from": "2023"})
    memory = Memory.of(SimpleNamespace(record=record, score=0.7, match_reasons=["semantic"]))
    assert (memory.text, memory.id, memory.first_stage_score) == ("Ruby likes tea", "r1", 0.7)
    assert (memory.mentioned_at, memory.occurred_start) == (Moment.parse(AT), Moment(2023))


class NodeWithScore:
    """Like LlamaIndex's, whose `text` raises for nodes that are not TextNodes."""

    def __init__(self, node, score):
        self.node, self.score = node, score

    @property
    def text(self):
        raise ValueError("Node must be a TextNode to get text.")


def test_a_llamaindex_node_that_is_not_a_text_node():
    node = SimpleNamespace(node_id="n1", text="Ruby likes tea", metadata={"valid_from": "2023", "valid_until": "2024"})
    memory = Memory.of(NodeWithScore(node, 0.7))
    assert (memory.text, memory.id, memory.first_stage_score) == ("Ruby likes tea", "n1", 0.7)
    assert (memory.occurred_start, memory.occurred_end) == (Moment(2023), Moment(2024))


def test_a_letta_search_result():
    passage = SimpleNamespace(id="p1", text="Ruby likes tea", created_at=AT, metadata={"valid_from": "2023"})
    memory = Memory.of(SimpleNamespace(passage=passage, score=0.7, metadata={"combined_score": 0.7}))
    assert (memory.text, memory.id, memory.first_stage_score) == ("Ruby likes tea", "p1", 0.7)
    assert (memory.mentioned_at, memory.occurred_start) == (Moment.parse(AT), Moment(2023))


def test_a_zep_edge():
    edge = SimpleNamespace(uuid_="e1", fact="Ruby likes tea", valid_at="2023-01-01T00:00:00Z", invalid_at=None)
    memory = Memory.of(edge)
    assert (memory.id, memory.is_ongoing) == ("e1", True)


def test_a_memos_item_keeps_its_first_stage_score():
    metadata = SimpleNamespace(relativity=0.4, created_at=AT.isoformat(), memory_type="LongTermMemory", key="Tea")
    memory = Memory.of(SimpleNamespace(id="m1", memory="Ruby likes tea", metadata=metadata))
    assert (memory.first_stage_score, memory.mentioned_at, memory.type) == (0.4, Moment.parse(AT), None)


def test_an_object_that_contains_itself():
    item = SimpleNamespace(text="Ruby likes tea")
    item.node = item.record = item
    assert Memory.of(item).text == "Ruby likes tea"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"text": "a", "attributes": {"since": "2024-03"}}, "attributes.since"),
        (SimpleNamespace(fact="a", attributes={"since": "2024-03"}), "attributes.since"),
        (SimpleNamespace(memory="a", metadata=SimpleNamespace(memoryTime="2024-03-05")), "memoryTime"),
        (SimpleNamespace(content="a", meta={"publishedAt": "2024-03-05"}), "meta.publishedAt"),
        (SimpleNamespace(content="a", meta={"created_at": "last spring"}), "meta.created_at"),
    ],
)
def test_a_date_that_is_not_understood_gives_a_warning(record, name):
    reports = []
    assert Memory.of(record, report=reports.append).date is None
    assert [report.partition(": ")[0] for report in reports] == [name]
