"""The server as an ASGI application: the API, the page, and what guards them."""

import logging
import warnings
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

import edbl
from edbl.serve import api, pages, schema
from edbl.serve.desk import Desk
from edbl.serve.guard import Guard
from edbl.serve.limits import Limits
from edbl.serve.metrics import KIND, Metrics
from edbl.serve.refusals import Refused
from edbl.serve.shelf import Shelf
from edbl.serve.uploads import invalid

REASONS = {404: "there is nothing at this address", 405: "this address takes other methods"}
NOW = {
    "models_loaded": "Models in use.",
    "photos_held": "Photos in memory.",
    "resident_bytes": "Memory of the process.",
}
WRONG = {
    "4XX": "What is wrong, in one or two sentences.",
    "503": "Too much at a time, or files of the model that cannot be read; Retry-After says when to try again.",
    "507": "The disk is full; nothing was changed.",
}


def application(
    shelf: Shelf, hosts: Collection[str], token: str | None = None, limits: Limits | None = None
) -> tuple[Guard, Desk]:
    """Return the application that serves the models of a shelf, and the desk of it."""
    limits = limits or Limits()
    metrics = Metrics()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        warnings.filterwarnings("ignore", module="PIL")  # what Pillow warns of is judged by our own checks
        logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form is answered
        app.state.desk = desk
        yield
        desk.close()

    desk = Desk(shelf, limits, metrics)
    app = FastAPI(
        title="edbl", version=edbl.__version__, lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.desk = desk
    app.include_router(api.router)
    app.include_router(pages.router)
    _health(app, desk)
    for kind in (Refused, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, _refused)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    return Guard(app, limits, metrics, hosts, token), desk


async def _refused(request: Request, error: Exception) -> Response:
    """Answer what is wrong in the one form that errors have."""
    if isinstance(error, Refused):
        return JSONResponse({"error": error.why}, error.status, error.headers)
    if isinstance(error, RequestValidationError):
        return JSONResponse({"error": invalid(error.errors())}, 422)
    if isinstance(error, HTTPException):
        if error.status_code == 405:
            error.headers = {"Allow": _allowed(request)}
        return JSONResponse(
            {"error": REASONS.get(error.status_code, "it cannot be done")}, error.status_code, error.headers
        )
    return JSONResponse({"error": "the client left"}, 400)


def _allowed(request: Request) -> str:
    """Return the methods of an address, which several routes may have."""
    there = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    return ", ".join(sorted({method for route in there for method in getattr(route, "methods", ())}))


def _health(app: FastAPI, desk: Desk) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["server"], response_model=schema.Health, operation_id="health")
    async def health() -> Response:
        """Tell that the server answers."""
        return JSONResponse({"status": "ok"})

    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", tags=["server"], operation_id="metrics", responses={200: text})
    async def metrics() -> Response:
        """Return what the server counts, as Prometheus reads it."""
        loaded = desk.shelf.loaded()
        values = float(len(loaded)), float(sum(len(one.held) for one in loaded)), resident()
        now = [(name, words, value) for (name, words), value in zip(NOW.items(), values, strict=True)]
        return Response(desk.metrics.text(now), headers={"Content-Type": KIND})


def resident() -> float:
    """Return how much memory this process has, in bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return float(file.read().split()[1]) * 4096
    except OSError:
        return 0.0


def _schema(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI schema: with the bodies that are read by hand, and errors as they are."""
    if app.openapi_schema:
        return app.openapi_schema
    made = get_openapi(title="edbl", version=edbl.__version__, routes=app.routes)
    parts = made.setdefault("components", {}).setdefault("schemas", {})
    for kind in schema.Body.__subclasses__():
        own = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        parts |= own.pop("$defs", {})
        parts[kind.__name__] = own
    parts["Error"] = schema.Error.model_json_schema()
    wrong = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for path, calls in made["paths"].items():
        for call in calls.values():
            call["responses"].pop("422", None)
            told = WRONG if path.startswith("/v1") else {key: WRONG[key] for key in ("4XX", "503")}
            call["responses"] |= {status: {"description": words, **wrong} for status, words in told.items()}
    for name in ("HTTPValidationError", "ValidationError"):
        parts.pop(name, None)
    app.openapi_schema = made
    return made
