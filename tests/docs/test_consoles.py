from __future__ import annotations

import pytest

from tests.docs.consoles import Shown, changed_settings, settings_in, shown_in, with_outputs

PAGE = """\
# A page

```yaml
scope: pod     # or container
name: pod
```

```console
a-host$ list | grep x; echo "$?"
first

  third
b$ show
```

Not a command: $ nothing.

```console
$ last
out
```
"""


def test_commands_are_found_with_their_hosts_and_outputs() -> None:
    assert shown_in(PAGE) == (
        Shown("a-host", 'list | grep x; echo "$?"', "first\n\n  third\n", 0),
        Shown("b", "show", "", 0),
        Shown("", "last", "out\n", 1),
    )


def test_outputs_are_put_below_their_commands_and_nothing_else_is_changed() -> None:
    written = with_outputs(PAGE, ["one\n", "two\nlines\n", ""])
    assert [shown.output for shown in shown_in(written)] == ["one\n", "two\nlines\n", ""]
    assert with_outputs(written, [shown.output for shown in shown_in(PAGE)]) == PAGE


def test_an_output_is_written_as_it_is_printed() -> None:
    (_, _, last) = shown_in(with_outputs(PAGE, ["", "", "\\1 \\g<0> \\n\n"]))
    assert last.output == "\\1 \\g<0> \\n\n"


def test_the_first_block_of_yaml_is_the_configuration() -> None:
    assert settings_in(PAGE) == "scope: pod     # or container\nname: pod\n"
    with pytest.raises(ValueError, match="no block of YAML"):
        settings_in("# nothing\n")


def test_settings_of_one_host_differ_in_one_line() -> None:
    changed = changed_settings(settings_in(PAGE), [("scope", "container")])
    assert changed == "scope: container     # or container\nname: pod\n"
    with pytest.raises(ValueError, match="other is in the configuration 0 times"):
        changed_settings(settings_in(PAGE), [("other", "x")])
