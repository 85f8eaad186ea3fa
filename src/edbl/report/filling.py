"""Pages from templates: what is filled in is escaped."""

from collections.abc import Mapping
from importlib.resources import files

import jinja2


def filled(name: str, values: Mapping[str, object]) -> str:
    """Return a page: a template of this folder with values."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)


def _text(name: str) -> str:
    return files("edbl.report").joinpath(name).read_text(encoding="utf-8")
