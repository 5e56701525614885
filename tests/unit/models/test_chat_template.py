"""Templates as they are found in the wild."""

import jinja2
import pytest

from flexmarl.models.chat_template import compiled


def test_blocks_are_trimmed_as_transformers_does() -> None:
    template = "{% for m in messages %}\n  {% if m %}\n[{{ m }}]\n  {% endif %}\n{% endfor %}"
    assert compiled(template)(messages=["a", "b"]) == "[a]\n[b]\n"


def test_json_keeps_html_and_unicode() -> None:
    assert compiled("{{ x | tojson }}")(x={"é": "<b>"}) == '{"é": "<b>"}'
    assert compiled("{{ x | tojson(indent=1) }}")(x=[1]) == "[\n 1\n]"


def test_loop_controls_and_generation_blocks_work() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% generation %}{{ m }}{% endgeneration %}{% endfor %}"
    )
    assert compiled(template)(messages=["a", "b", "c"]) == "ab"


def test_a_template_can_refuse() -> None:
    with pytest.raises(jinja2.TemplateError, match="only once"):
        compiled("{{ raise_exception('only once') }}")()


def test_a_template_knows_the_date() -> None:
    assert len(compiled("{{ strftime_now('%Y-%m-%d') }}")()) == 10


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ().__class__.__base__ }}"],
)
def test_a_template_stays_in_its_sandbox(template: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        compiled(template + "{{ undefined_thing.x }}")(messages=[])
