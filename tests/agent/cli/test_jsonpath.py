from __future__ import annotations

from typing import Final

import click
import pytest

from agent.cli.jsonpath import filled, template_of

DOCUMENT: Final = {
    "pods": [
        {
            "name": "web",
            "cpus": 2,
            "enforced": True,
            "devices": {"example.com/gpu": ["g0", "g1"]},
            "containers": [{"name": "a"}, {"name": "b"}],
        },
        {"name": "db", "cpus": 4, "memory": None, "containers": [{"name": "c"}]},
    ],
    "pool": "0-3",
}


def printed(template: str, document: object = DOCUMENT) -> str:
    return filled(template_of(template), document)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{.pods[*].name}", "web db"),
        ("{$.pods[0].name}", "web"),
        ("{@.pods[-1].name}", "db"),
        ("{.pods[-1:].name}", "db"),
        ("{.pods[*]['name','cpus']}", "web 2 db 4"),
        ('{.pods[?(@.name=="db")].cpus}', "4"),
        ("{.pods[?(@.cpus > 2)].name}", "db"),
        ("{..name}", "web a b db c"),
        ("{ .pods[0].name }", "web"),
        ("pool is {.pool}, web has {.pods[0].cpus} CPUs", "pool is 0-3, web has 2 CPUs"),
    ],
)
def test_a_path_in_braces_stands_for_its_values(template: str, said: str) -> None:
    assert printed(template) == said


@pytest.mark.parametrize("template", [".pods[*].name", "pods[*].name", "$.pods[*].name"])
def test_without_braces_the_whole_is_a_path(template: str) -> None:
    assert printed(template) == "web db"


def test_a_string_is_raw_and_any_other_value_is_json() -> None:
    assert printed("{.pool}") == "0-3"
    assert printed("{.pods[0].enforced} {.pods[1].memory} {.pods[0].cpus}") == "true null 2"
    assert printed("{.pods[0].devices}") == '{"example.com/gpu":["g0","g1"]}'


def test_the_whole_document_has_its_signs() -> None:
    for sign in ("$", "@", "."):
        assert printed(f"{{{sign}}}", [1, 2]) == "[1,2]"


def test_a_path_that_finds_nothing_is_empty() -> None:
    assert printed("{.nothing}{.pods[7].name}{.pool.more}") == ""


@pytest.mark.parametrize(
    "path",
    [
        r".pods[0].devices.example\.com/gpu[0]",
        r".pods[?@.devices.example\.com/gpu].devices.*[0]",
        ".pods[0].devices['example.com/gpu'][0]",
    ],
)
def test_a_name_with_dots_is_escaped_or_quoted(path: str) -> None:
    assert printed(f"{{{path}}}") == "g0"


def test_what_is_quoted_in_a_path_keeps_its_dots_and_braces() -> None:
    document = {"a": [{"name": "}.x{", "b": 1}]}
    assert printed("{.a[?@.name=='}.x{'].b}", document) == "1"
    assert printed(r"{.a[?match(@.name, '..x\\.*')].b}", {"a": [{"name": "y.x.", "b": 2}]}) == "2"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (r'{"\n"}', "\n"),
        (r"{'a\tb'}", "a\tb"),
        (r"""{"it's"}{'\''}{"\\n"}""", r"it's'\n"),
        ('{"{"}{ "é" }{"}"}', "{é}"),
    ],
)
def test_a_text_in_quotes_stands_for_itself(template: str, said: str) -> None:
    assert printed(template) == said


def test_a_range_repeats_what_is_before_its_end() -> None:
    template = r'{range .pods[*]}{.name}{"\t"}{@.cpus} of {$.pool}{"\n"}{end}done'
    assert printed(template) == "web\t2 of 0-3\ndb\t4 of 0-3\ndone"


def test_a_range_may_be_in_another() -> None:
    template = "{range .pods[*]}{.name}:{range .containers[*]} {.name}{end};{end}"
    assert printed(template) == "web: a b;db: c;"


def test_values_of_a_range_are_taken_as_they_are() -> None:
    document = {"a": ["[1", "7", '{"x": 1}', 8]}
    assert printed("{range .a[*]}<{@}{.x}>{end}", document) == '<[1><7><{"x": 1}><8>'


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{.pods[}", r"the path '\$.pods\[' at its end: unexpected end of query"),
        ("{.pods[*.name}", r"the path '\$.pods\[\*.name' at '.name': "),
        (".pods}", r"the path '\$.pods}' at '}': unexpected token '}'"),
        ("{.pods[?nothing(@.x)]}", "function 'nothing' is not defined"),
        ("a {.pods[*].name", "a brace is not closed: '{.pods"),
        ("{'text}", 'a brace is not closed: "{\'text}"'),
        ("{.a}{end}", "an {end} has no {range PATH} before it: '{.a}{end}'"),
        ("{range .a}{.b}", "a {range PATH} has no {end}: '{range .a}{.b}'"),
        ("{range .a[}{end}", r"the path '\$.a\[' at its end"),
        ("{}", r"a path is missing in braces; {\$} is the whole document"),
        ("{range }{end}", "a path is missing"),
        ("{'a' 'b'}", "the path \"\\$.'a' 'b'\" at "),
    ],
)
def test_a_mistake_in_a_template_is_named_with_its_place(template: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        template_of(template)
