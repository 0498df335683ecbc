from __future__ import annotations

import json

import pytest

from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import read_graded, write_graded
from mnemorank.data.teacher import Teacher, TeacherError, TeacherSettings, positions_by_rank
from mnemorank.data.teacher_cache import GradeCache
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from tests.data.endpoint import Endpoint, completion, serving


def example(count: int = 5, right: int = 2) -> Example:
    texts = [f"{'right' if i == right else 'wrong'} memory {i}" for i in range(count)]
    candidates = [Candidate(Memory(text, first_stage_score=float(count - i)), 0.0) for i, text in enumerate(texts)]
    return Example("1", "which memory", tuple(candidates))


def settings(url: str, **changes: object) -> TeacherSettings:
    return TeacherSettings(**{"url": url, "model": "judge", "initial_backoff": 0.01, "timeout": 5.0, **changes})


def test_grades_become_labels_through_the_api(tmp_path):
    endpoint = Endpoint()
    with serving(endpoint) as url, Teacher(settings(url, key="secret", price_in=2.0, price_out=10.0)) as teacher:
        (labeled,) = teacher.label([example()])
        assert labeled.labels == [0.2, 0.2, 1.0, 0.2, 0.2]
        assert (teacher.cost.graded, teacher.cost.requests, teacher.cost.retries) == (5, 1, 0)
        assert (teacher.cost.from_cache, teacher.cost.input_tokens) == (0, 100)
        assert "5 pairs" in str(teacher.cost)
        assert teacher.cost.money == pytest.approx((100 * 2 + 10 * 10) / 1e6)
        assert "secret" not in repr(teacher.settings)
    (body,) = endpoint.requests
    assert endpoint.headers[0]["Authorization"] == "Bearer secret"
    assert endpoint.headers[0]["path"] == "/v1/chat/completions"
    assert body["response_format"]["json_schema"]["strict"] is True
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["grades"]


def test_cached_pairs_are_not_sent_again(tmp_path):
    cache = tmp_path / "deep" / "grades.jsonl"
    endpoint = Endpoint()
    with serving(endpoint) as url:
        with Teacher(settings(url), GradeCache(cache)) as teacher:
            first = teacher.label([example()])
        with Teacher(settings(url), GradeCache(cache)) as teacher:
            assert teacher.label([example()]) == first
            assert teacher.cost.requests == 0
            assert teacher.cost.from_cache == 5
        with Teacher(settings(url), GradeCache(cache)) as teacher:
            teacher.label([example(7)])
        assert len(endpoint.requests) == 2
        assert endpoint.requests[1]["messages"][1]["content"].count("memory") == 3  # two new memories, and the query
        with Teacher(settings(url, model="other"), GradeCache(cache)) as teacher:
            teacher.label([example()])
        assert len(endpoint.requests) == 3


def test_a_truncated_cache_line_is_ignored_and_another_kind_of_file_is_an_error(tmp_path):
    path = tmp_path / "grades.jsonl"
    cache = GradeCache(path)
    cache.put("a", 0.4)
    cache.close()
    with path.open("a") as stream:
        stream.write('{"key": "b", "gr')
    cache = GradeCache(path)
    assert (cache.get("a"), cache.get("b")) == (0.4, None)
    cache.put("c", 1.0)
    cache.close()
    cache = GradeCache(path)
    assert (cache.get("a"), cache.get("c")) == (0.4, 1.0)
    cache.close()
    path.write_text("name,grade\na,1\n")
    with pytest.raises(InputError, match=r"grades\.jsonl:1"):
        GradeCache(path)


TOO_FEW = json.dumps({"grades": [{"memory": 1, "grade": 0.2}]})
OFF_SCALE = json.dumps({"grades": [{"memory": i, "grade": 0.5} for i in range(1, 6)]})


@pytest.mark.parametrize(
    "failure",
    [429, 500, 503, "stall", "I think the first is best.", TOO_FEW, OFF_SCALE, b"<html>", b"[]", completion("[]")],
    ids=str,
)
def test_failed_requests_are_retried(failure):
    endpoint = Endpoint({0: failure, 1: 502})
    with serving(endpoint) as url, Teacher(settings(url, timeout=0.7)) as teacher:
        (labeled,) = teacher.label([example()])
        assert labeled.labels[2] == 1.0
        assert teacher.cost.retries == 2
        assert len(endpoint.requests) == 3


def test_persistent_failures_are_reported_and_the_rest_is_kept(tmp_path):
    endpoint = Endpoint(dict.fromkeys(range(2, 50), 500))
    questions = [Example(str(i), f"question {i}", example().candidates) for i in range(4)]
    with serving(endpoint) as url:
        teacher = Teacher(settings(url, max_attempts=2, concurrency=1), GradeCache(tmp_path / "c.jsonl"))
        with (
            teacher,
            pytest.raises(TeacherError, match=r"2 of 4 requests.*500"),
        ):
            teacher.label(questions)
        endpoint.script = {}
        with Teacher(settings(url), GradeCache(tmp_path / "c.jsonl")) as again:
            assert len(again.label(questions)) == 4
            assert again.cost.graded == 10


def test_a_repeated_pair_is_graded_once():
    endpoint = Endpoint()
    twice = [Example("1", "a question", example().candidates), Example("2", "a question", example(7).candidates)]
    with serving(endpoint) as url, Teacher(settings(url)) as teacher:
        labeled = teacher.label(twice)
        assert teacher.cost.graded == 7
    assert labeled[0].labels == labeled[1].labels[:5]


def test_a_refused_request_stops_the_run():
    endpoint = Endpoint(dict.fromkeys(range(100), 401))
    questions = [Example(str(i), f"question {i}", example().candidates) for i in range(20)]
    with serving(endpoint) as url, Teacher(settings(url, concurrency=1)) as teacher:
        with pytest.raises(TeacherError, match="401"):
            teacher.label(questions)
        assert len(endpoint.requests) < 20
        assert teacher.cost.retries == 0


def test_concurrency_is_limited():
    endpoint = Endpoint()
    endpoint.delay = 0.05
    questions = [Example(str(i), f"question {i}", example().candidates) for i in range(8)]
    counts: list[int] = []
    with serving(endpoint) as url, Teacher(settings(url, concurrency=3)) as teacher:
        teacher.label(questions, on_graded=counts.append)
    assert 2 <= endpoint.max_active <= 3
    assert sum(counts) == 40


def test_only_the_given_ranks_are_graded_and_known_positives_stay():
    base = example(6)
    known = (Candidate(base.candidates[0].memory, 1.0), *base.candidates[1:])
    endpoint = Endpoint()
    with serving(endpoint) as url, Teacher(settings(url, pairs_per_request=2)) as teacher:
        (labeled,) = teacher.label([Example("1", base.query, known)], ranks=(3, 5))
    assert [c.memory.text[-1] for c in labeled.candidates] == ["0", "2", "3", "4"]
    assert labeled.labels == [1.0, 1.0, 0.2, 0.2]
    assert len(endpoint.requests) == 2


def test_graded_labels_round_trip(tmp_path):
    base = example(4)
    weighted = (Candidate(base.candidates[0].memory, 1.0, 3.0), *base.candidates[1:])
    query = Example("1", base.query, weighted, group="ann", pairs=((0, 3),))
    with serving(Endpoint()) as url, Teacher(settings(url)) as teacher:
        (labeled,) = teacher.label([query], ranks=(1, 3))
    assert labeled.labels == [0.2, 0.2, 1.0]
    assert [candidate.weight for candidate in labeled.candidates] == [3.0, 1.0, 1.0]
    assert labeled.pairs == ()
    write_graded([labeled], tmp_path / "graded.jsonl")
    (read,) = read_graded(tmp_path / "graded.jsonl")
    assert read.candidates == labeled.candidates
    assert read.relevant_from == labeled.relevant_from == 0.5


def test_a_response_without_token_counts_is_valid():
    grades = json.dumps({"grades": [{"memory": i, "grade": 0.2} for i in range(1, 6)]})
    response = json.loads(completion(grades)) | {"usage": {"prompt_tokens": None, "completion_tokens": None}}
    with serving(Endpoint({0: json.dumps(response).encode()})) as url, Teacher(settings(url)) as teacher:
        assert teacher.label([example()])[0].labels == [0.2] * 5
        assert (teacher.cost.retries, teacher.cost.input_tokens) == (0, 0)


def test_ranks_are_by_bm25_without_first_stage_scores():
    texts = ["the cat sat", "", "cats and dogs", "nothing here"]
    query = Example("1", "cat", tuple(Candidate(Memory(text), 0.0) for text in texts))
    assert positions_by_rank(query, 1, 2) == [0, 2]
    assert positions_by_rank(query, 3, 9) == [3]
    with pytest.raises(InputError, match="ranks"):
        positions_by_rank(query, 3, 2)


def test_invalid_settings_are_errors():
    with pytest.raises(InputError, match="url"):
        TeacherSettings("localhost:8000", "judge")
    with pytest.raises(InputError, match="concurrency"):
        TeacherSettings("http://x", "judge", concurrency=0)
