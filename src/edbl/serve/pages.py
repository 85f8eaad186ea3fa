"""The page of the server and of its API: a fixed list of files, and no other path."""

from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response

from edbl.serve.refusals import Refused

KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}
SHEET = """body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
code { overflow-wrap: anywhere; } th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; }
:root { color-scheme: light dark; }
"""

router = APIRouter(include_in_schema=False)


@cache
def page_files() -> dict[str, bytes]:
    """Return the files of the page, by name: they are read once."""
    place = files("edbl.serve") / "page"
    if not place.is_dir():
        return {}
    found = {one.name: one for one in place.iterdir() if any(one.name.endswith(kind) for kind in KINDS)}
    return {name: one.read_bytes() for name, one in found.items()}


@router.get("/")
async def index() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """Return a file of the page."""
    return _file(name)


@router.get("/favicon.ico")
async def icon() -> Response:
    """Return the icon where browsers look for it."""
    return _file("icon.svg")


def _file(name: str) -> Response:
    data = page_files().get(name)
    if data is None:
        raise Refused(404, "there is nothing at this address")
    return Response(data, headers={"Content-Type": KINDS[name[name.rindex(".") :]], "Cache-Control": "no-cache"})


@router.get("/docs.css")
async def sheet() -> Response:
    """Return how the page of the API looks."""
    return Response(SHEET, headers={"Content-Type": KINDS[".css"]})


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Return the API as a page that needs nothing from elsewhere."""
    made: dict[str, Any] = request.app.openapi()
    rows = []
    for path, calls in made["paths"].items():
        for method, call in calls.items():
            gives = call["responses"].get("200") or call["responses"]["202"]
            cells = [
                f"<code>{method.upper()} {escape(path)}</code>",
                escape(call.get("description", "")),
                ", ".join(call.get("requestBody", {}).get("content", {})),
                ", ".join(one["name"] for one in call.get("parameters", []) if one["in"] == "query"),
                ", ".join(gives.get("content", {})),
            ]
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        "<title>edbl: the API</title><link rel=stylesheet href=/docs.css><h1>The API of edbl</h1>"
        "<p>All of it as a schema: <a href=/openapi.json>/openapi.json</a>.</p><table>"
        "<tr><th>call<th>what it does<th>takes<th>query<th>gives</tr>" + "".join(rows) + "</table></html>"
    )
    return Response(page, headers={"Content-Type": KINDS[".html"]})
