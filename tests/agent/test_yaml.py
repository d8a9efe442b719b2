from __future__ import annotations

import json
from contextlib import suppress
from textwrap import dedent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent import yaml as module
from agent.yaml import (
    MAX_DEPTH,
    MAX_VALUES,
    MISTAKES_REPORTED,
    DocumentError,
    Field,
    MappingNode,
    Mistake,
    Number,
    Reader,
    ScalarNode,
    SequenceNode,
    Unclear,
    UnreadableError,
    from_plain,
    guess,
    join,
    places,
    plain,
    read_document,
    resolve,
    shown,
)


def test_one_mistake_is_reported_in_one_line_and_several_in_one_each() -> None:
    error = DocumentError("pod.yaml", (Mistake("spec.x", "is wrong", 3),))
    assert str(error) == "pod.yaml: line 3: spec.x: is wrong"
    error = DocumentError("pod.yaml", (Mistake("a", "bad"), Mistake("", "worse", 1)))
    assert str(error) == "pod.yaml: 2 mistakes in this document\n  a: bad\n  line 1: worse"


def test_of_many_mistakes_the_first_are_reported_and_how_many_more_there_are() -> None:
    error = DocumentError("pod.yaml", tuple(Mistake("a", str(number)) for number in range(250)))
    first, *lines, last = str(error).splitlines()
    assert first == "pod.yaml: 250 mistakes in this document"
    assert lines == [f"  a: {number}" for number in range(100)]
    assert last == "  and 150 more"


def _field(text: str, key: str) -> Field:
    field = Field("", read_document(text)).child(key)
    assert field is not None
    return field


def test_absent_and_null_are_the_same() -> None:
    root = Field("", read_document("a: null\nb:\n"))
    assert [root.child(name) for name in "abc"] == [None] * 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("5", "found the number 5; put it in quotes"),
        ("true", "found the boolean true; put it in quotes"),
        ("010", "leading zero"),
        ("12:30", "base 60"),
        ("[a]", "found a list"),
        ("{a: b}", "found a mapping"),
    ],
)
def test_a_text_of_another_type_is_rejected_with_what_was_found(value: str, words: str) -> None:
    reader = Reader()
    assert reader.text(_field(f"a:\n  {value}\n", "a")) is None
    (problem,) = reader.problems
    assert (problem.path, problem.line) == ("a", 2)
    assert words in problem.message


@pytest.mark.parametrize(
    "value", ["1.0", "1e3", '"1"', "9" * 100, "11", "-1", "x", "[]", '"%s"' % ("9" * 5000)]
)
def test_only_whole_numbers_within_bounds_are_integers(value: str) -> None:
    reader = Reader()
    assert reader.integer(_field(f"a: {value}\n", "a"), 0, 10) is None
    assert "from 0 to 10" in reader.problems[0].message
    assert len(reader.problems[0].message) < 200
    for text, number in (("0", 0), ("+10", 10)):
        assert reader.integer(_field(f"a: {text}", "a"), 0, 10) == number
    assert len(reader.problems) == 1


def test_an_item_without_a_value_is_not_a_text() -> None:
    reader = Reader()
    (item,) = reader.items(_field("a: [null]\n", "a"))
    assert reader.text(item) is None
    assert reader.problems[0].message.startswith("expected a text, found nothing")


def test_unknown_keys_are_rejected_and_so_many_with_the_nearest_name() -> None:
    reader = Reader()
    keys = "".join(f"adress{n}: 1\n" for n in range(MISTAKES_REPORTED + 50))
    reader.reject_unknown(Field("x", read_document(keys + "port: 1")), ("address", "port"))
    said = 'line 1: x.adress0: unknown key "adress0"; did you mean "address"?'
    assert str(reader.problems[0]) == said
    hints = ["did you mean" in problem.message for problem in reader.problems]
    assert hints == [True] * MISTAKES_REPORTED + [False] * 50


def test_a_guess_ignores_case_and_may_find_nothing() -> None:
    assert guess("STATIC", ["none", "static"]) == '; did you mean "static"?'
    assert guess("zzz", ["none", "static"]) == ""


@pytest.mark.parametrize(
    ("path", "key", "joined"),
    [
        ("a.b", "cpu", "a.b.cpu"),
        ("", "cpu", "cpu"),
        ("a", "hugepages-2Mi", "a.hugepages-2Mi"),
        ("a", "example.com/gpu", 'a["example.com/gpu"]'),
        ("a", "k" * 61, f'a["{"k" * 57}..."]'),
    ],
)
def test_paths_put_keys_that_are_no_words_in_brackets(path: str, key: str, joined: str) -> None:
    assert join(path, key) == joined


def test_shown_text_is_escaped_and_bounded() -> None:
    assert shown('a"\n\x1b[31m') == '"a\\"\\n\\x1b[31m"'
    assert len(shown("x" * 10_000)) < 70


def test_values_of_yaml_know_their_line() -> None:
    document = read_document("a: 1\nb:\n  - x\n  - 'on'\n")
    assert document == MappingNode(
        {
            "a": ScalarNode(Number("1"), 1),
            "b": SequenceNode((ScalarNode("x", 3), ScalarNode("on", 4)), 3),
        },
        1,
    )


def test_json_and_bytes_with_a_byte_order_mark_are_read() -> None:
    # Neither a tab between tokens nor a surrogate pair would pass as YAML here.
    document = read_document('{\n\t"a":\t["\\ud83d\\ude00", 1e3, null, true]}')
    assert plain(document) == {"a": ["\U0001f600", "1e3", None, True]}
    assert plain(read_document(b"\xef\xbb\xbfa: b\n")) == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\na: 2\n", 2, "given twice, first on line 1"),
        ('{"a": 1, "a": 2}', None, "given twice"),
        ("- *x\n- &x a\n", 1, "alias *x names no value before it"),
        ("- &x a\n- &x [*x]\n", 2, "alias *x names no value before it"),
        ("- &x a\n- *x : b\n", 2, "key must be a text, not a list, mapping or alias"),
        ("a:\n  <<: {b: 1}\n", 2, "merge key"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !x {}\n", 1, "tag"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("", None, "empty"),
        ("# only a comment\n", None, "empty"),
        ("a: [1\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("\ta: 1\n", 1, "not YAML"),
        ('{"a": 1,,}', 1, "not JSON"),
        ('{"a": NaN}', None, "not JSON: NaN"),
        ('{"a": "\\ud800"}', None, "surrogate"),
        ('{"\\ud800": 1}', None, "surrogate"),
        ("on: 1\n", 1, "not a text"),
        ("1: 1\n", 1, "not a text"),
        ("? [a]\n: 1\n", 1, "key must be a text"),
        ("a: \x00\n", None, "not YAML"),
        (b"a: \xff\n", None, "UTF-8"),
        ("a: \ud800\n", None, "UTF-8"),
    ],
)
def test_what_is_no_document_names_its_line(
    text: str | bytes, line: int | None, words: str
) -> None:
    with pytest.raises(UnreadableError) as caught:
        read_document(text)
    assert words in caught.value.problem.message
    assert caught.value.problem.line == line


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 20_000, '{"a":' + "[" * 5000 + "]}"])
def test_deep_nesting_is_rejected_before_it_costs_anything(deep: str) -> None:
    with pytest.raises(UnreadableError, match="nested"):
        read_document(deep)


def test_nesting_up_to_the_limit_is_fine() -> None:
    read_document("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    with pytest.raises(UnreadableError, match="nested"):
        read_document("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2))


@pytest.mark.parametrize("one", ["- a: b\n", "- {a: [b]}\n"])
def test_too_many_values_are_rejected_before_they_cost_anything(one: str) -> None:
    with pytest.raises(UnreadableError, match="more than 20000 values"):
        read_document(one * 80_000)


def test_an_alias_is_the_value_that_was_named_before() -> None:
    text = """
        first: &a {cpu: &n "2", memory: 1Gi}
        second: {limits: *a, requests: *a}
        third: &a [*n, *n]
        last: *a
    """
    amounts = {"cpu": "2", "memory": "1Gi"}
    document = read_document(dedent(text))
    assert plain(document) == {
        "first": amounts,
        "second": {"limits": amounts, "requests": amounts},
        "third": ["2", "2"],
        "last": ["2", "2"],
    }
    assert places(document, ["second.limits.cpu"]) == {"second.limits.cpu": 2}
    assert plain(read_document(yaml.safe_dump([amounts, amounts]))) == [amounts, amounts]


@pytest.mark.parametrize(
    ("anchored", "words"),
    [
        ("[{}]", "nested more than 64 deep"),
        ("[{0},{0},{0}]", "more than 20000 values"),
        ('[{0},{0},"' + "x" * 2000 + '"]', "more than 1048576 characters"),
    ],
)
def test_aliases_are_bounded_as_if_they_were_written_out(anchored: str, words: str) -> None:
    """A billion laughs: each value holds the one before several times."""
    lines = ["- &a0 [lol]", *(f"- &a{n} {anchored.format(f'*a{n - 1}')}" for n in range(1, 100))]
    with pytest.raises(UnreadableError, match=words):
        read_document("\n".join(lines))


@pytest.mark.parametrize("one", ["{},", "[],", "0,", '"",', '"a\\"",', "[", '{"":', "null,"])
def test_too_many_values_of_json_are_never_made(one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(UnreadableError, match="more than 20000 values"):
        read_document('{"a":[' + one * 30_000 + "0]}")


@pytest.mark.parametrize("text", ["{" * 30_000, "\\" * 30_000, '\\"[' * 30_000, ",\n" * 30_000])
def test_what_stands_in_a_text_of_json_is_not_a_value(text: str) -> None:
    assert plain(read_document(json.dumps({"a": text}))) == {"a": text}


@pytest.mark.parametrize(
    "text",
    [*("*%s", "!%s 1", "'%s': 1\n'%s': 2"), *('{"%s":1,"%s":2}', '{"a":"%s\\ud800"}')],
)
def test_a_mistake_quotes_what_is_long_in_short(text: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read_document(text.replace("%s", "1" * 1_000))
    assert len(caught.value.problem.message) < 200


def test_too_many_values_of_json_are_rejected() -> None:
    fits = {"a": [1] * (MAX_VALUES - 2)}
    assert isinstance(read_document(json.dumps(fits)), MappingNode)
    half = MAX_VALUES // 2
    many: tuple[object, ...] = ([1] * (2 * half - 1), [[]] * (2 * half - 1), [{"b": 1}] * half)
    for much in many:
        with pytest.raises(UnreadableError, match="more than 20000 values"):
            read_document(json.dumps({"a": much}))
    assert plain(read_document(json.dumps({"a": "," * (2 * MAX_VALUES)})))


def test_a_text_above_the_limit_is_rejected_by_its_bytes() -> None:
    assert plain(read_document("é" * 5, max_bytes=10)) == "é" * 5
    with pytest.raises(UnreadableError, match="11 bytes, more than the limit of 10"):
        read_document("é" * 5 + "x", max_bytes=10)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "text", ['{"a": 1, b: x}', "{a: 1, b: x}", "{\n  a: 1, # one\n  b: x,\n}\n"]
)
def test_a_mapping_in_flow_style_is_yaml(text: str) -> None:
    assert plain(read_document(text)) == plain(read_document("a: 1\nb: x\n"))


@given(_JSON.filter(lambda value: isinstance(value, dict)))
def test_json_reads_back_what_was_written(value: dict[str, object]) -> None:
    assert plain(read_document(json.dumps(value))) == plain(from_plain(value))  # type: ignore[arg-type]  # generated JSON


@given(st.text() | st.binary() | st.text("[]{}:,-&*!|>'\"#%@ \n\tab01", max_size=60))
def test_any_input_is_a_document_or_unreadable(text: str | bytes) -> None:
    with suppress(UnreadableError):
        plain(read_document(text))


def test_places_are_the_lines_of_values_or_of_what_is_around_them() -> None:
    document = read_document("a:\n  b:\n    - c: 1\n      d.e: 2\n")
    expected = {
        "a.b[0].c": 3,
        'a.b[0]["d.e"]': 4,
        "a.b[0].missing.deeper": 3,
        "a.bc": 2,
        "elsewhere": 1,
        "": 1,
    }
    assert places(document, expected) == expected


def test_places_cost_one_walk_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []

    def counted(path: str, key: str) -> str:
        joined.append(key)
        return join(path, key)

    monkeypatch.setattr(module, "join", counted)
    lines = "".join(f"  k{number}: 1\n" for number in range(1000))
    found = places(read_document(f"a:\n{lines}"), [f"a.k{number}" for number in range(1000)])
    assert list(found.values()) == list(range(2, 1002))
    assert len(joined) == 1001


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["", "~", "null", "Null", "NULL"], [None] * 5),
        (["true", "False", "TRUE"], [True, False, True]),
    ],
)
def test_words_of_yaml_are_null_and_booleans(texts: list[str], values: list[object]) -> None:
    assert [resolve(text) for text in texts] == values


@pytest.mark.parametrize(
    "text", ["0", "-1", "+2", "10", "0.5", ".5", "5.", "1e3", "1.5E-3", "0e1", "9" * 128]
)
def test_plain_decimal_numbers_keep_their_text(text: str) -> None:
    assert resolve(text) == Number(text)


@pytest.mark.parametrize(
    "text",
    ["on", "Off", "YES", "no", "010", "-07", "00", "0_1", "0x1F", "0o17", "0b1", "1_000", "12:30",
     "1:2:3", "190:20:30.15", ".inf", "-.INF", ".nan", "2026-11-20", "2026-1-2 10:00:00",
     "0" * 128],
)  # fmt: skip
def test_what_yaml_versions_read_differently_is_unclear(text: str) -> None:
    value = resolve(text)
    assert isinstance(value, Unclear)
    assert value.text == text
    assert value.reason


@pytest.mark.parametrize(
    "text",
    ["y", "n", "500m", "4Gi", "v1", "0-3", "1.2.3.4", "a:b", "-", ".",
     "9" * 129, "0" * 129, "1:" * 99 + "1", "0x" + "f" * 200],
)  # fmt: skip
def test_anything_else_and_no_number_is_longer_than_128_characters(text: str) -> None:
    assert resolve(text) == text


@given(st.text())
def test_every_text_has_a_reading(text: str) -> None:
    value = resolve(text)
    if isinstance(value, Number | Unclear):
        assert value.text == text
