"""The calls of the API, one function for each; what they do is the desk's and the models'."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from edbl.data.decoding import Decoded
from edbl.serve import schema, uploads
from edbl.serve.desk import Desk
from edbl.serve.held import Shown
from edbl.serve.limits import MB
from edbl.serve.model import Learning, Served, Values, learning
from edbl.serve.refusals import Refused
from edbl.serve.shelf import learning_on
from edbl.text import class_name

GONE = "the server does not hold this photo any more; send it again"
Top = Annotated[int, Query(ge=1, le=1000, description="How many classes to name.")]
Unknown = Annotated[
    float, Query(ge=0, lt=1, description="Share of photos of known classes that may be called unknown.")
]
Yes = Annotated[bool, Query(description="Learn photos too that look mislabelled.")]

router = APIRouter(prefix="/v1/models")


def desk(request: Request) -> Desk:
    """Return the desk of the server."""
    found: Desk = request.app.state.desk
    return found


def takes(*kinds: type[BaseModel], files: bool = False, labels: bool = False) -> dict[str, Any]:
    """Return what the schema says of a request's body."""
    content: dict[str, Any] = {}
    if files:
        text = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "minItems": 1}
        photos = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1, "maxItems": 64}
        form: dict[str, Any] = {
            "type": "object",
            "properties": {"files": photos} | ({"labels": text} if labels else {}),
            "required": ["files", "labels"] if labels else ["files"],
            "additionalProperties": False,
        }
        content["multipart/form-data"] = {"schema": form}
    for kind in kinds:
        content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
    return {"requestBody": {"content": content, "required": True}}


async def asked(request: Request, name: str) -> Served:
    """Return the model that a request is about."""
    return await desk(request).model(name)


async def changed(request: Request, name: str) -> Learning:
    """Return the model that a request is to change."""
    return learning(await asked(request, name))


def answer(values: Values, status: int = 200) -> JSONResponse:
    """Return JSON as it is: what it is made of was checked where it was made."""
    return JSONResponse(values, status)


def predicted(one: Shown | Decoded, file: str, top: int, unknown: float) -> Values:
    """Return what was said of a photo."""
    if isinstance(one, Decoded):
        return {"file": file, "id": None, "unknown": False, "classes": [], "error": one.bad}
    assert one.said is not None
    best = [{"name": name, "probability": round(value, 6)} for name, value in one.said.best(top)]
    return {"file": file, "id": one.id, "unknown": one.said.unknown(unknown), "classes": best}


@router.get("", tags=["info"], response_model=schema.Models, operation_id="models")
async def models(request: Request) -> Response:
    """Return all models, and the limits of a request."""
    here = desk(request)
    found = [await here.model(name) for name in here.shelf.names()]
    infos = [await here.read(one, one.info) for one in found]
    most = {
        "files": here.limits.files,
        "file_mb": here.limits.file_bytes // MB,
        "request_mb": here.limits.body_bytes // MB,
    }
    flags = {"writable": here.shelf.writable, "several": here.shelf.several}
    return answer({"models": infos, **flags, "limits": most})


@router.post("", tags=["learn"], response_model=schema.Info, operation_id="make", openapi_extra=takes(schema.NewModel))
async def make(request: Request) -> Response:
    """Make a model in a folder of several, or choose how a new one is made."""
    from edbl.serve.taught import New, Taught

    here, wanted = desk(request), await uploads.body(request, schema.NewModel)
    new = New(wanted.keep, wanted.method, None)

    def work() -> Values:
        there = here.shelf.names()
        model = here.shelf.get(wanted.name) if wanted.name in there else here.shelf.add(wanted.name)
        if not isinstance(model, Taught):
            raise Refused(409, "this server has an exported model, which cannot be changed")
        try:
            model.made_with(new)
        except Exception:
            if wanted.name not in there:
                here.shelf.drop(wanted.name)
            raise
        return model.info()

    return answer(await here.change(here.shelf.loaded()[0], work) if here.shelf.loaded() else await here.make(work))


@router.get("/{model}/", tags=["info"], response_model=schema.Info, operation_id="info")
@router.get("/{model}", include_in_schema=False)
async def info(request: Request, model: str) -> Response:
    """Return what a model is: version, classes, photos, accuracy."""
    found = await asked(request, model)
    return answer(await desk(request).read(found, found.info))


@router.post(
    "/{model}/predict",
    tags=["predict"],
    response_model=schema.Predictions,
    operation_id="predict",
    openapi_extra=takes(schema.Ids, files=True),
)
async def predict(request: Request, model: str, top: Top = 3, unknown: Unknown = 0.05) -> Response:
    """Predict photos that are sent, or, by their ids, those that the server still holds."""
    here, found = desk(request), await asked(request, model)
    photos: Sequence[Shown | Decoded]
    if uploads.is_form(request):
        form = await uploads.form(request, here.limits)
        photos, names = await here.decode(found, form.files), [one.name for one in form.files]
    else:
        ids = (await uploads.body(request, schema.Ids)).photos
        photos = [found.held.get(id) or Decoded(None, bad=GONE) for id in ids]
        names = [one.file if isinstance(one, Shown) else id for one, id in zip(photos, ids, strict=True)]
    shown = [one for one in photos if isinstance(one, Shown)]
    if shown:
        await here.ask(found, shown)
    versions = [one.said.version for one in shown if one.said]
    predictions = [predicted(one, file, top, unknown) for one, file in zip(photos, names, strict=True)]
    return answer({"version": max(versions, default=0), "predictions": predictions})


@router.post(
    "/{model}/teach",
    tags=["learn"],
    response_model=schema.Taught,
    operation_id="teach",
    openapi_extra=takes(schema.Labels, files=True, labels=True),
)
async def teach(request: Request, model: str, yes: Yes = False) -> Response:
    """Learn photos with their classes at once, or stage them for an update of a trained model."""
    here, found = desk(request), await changed(request, model)
    errors, photos = [], list[tuple[Shown, str]]()
    if uploads.is_form(request):
        form = await uploads.form(request, here.limits, labelled=True)
        for one, file, label in zip(await here.decode(found, form.files), form.files, form.labels, strict=True):
            if isinstance(one, Shown):
                photos.append((one, label))
            else:
                errors.append({"file": file.name, "error": one.bad})
    else:
        wanted = await uploads.body(request, schema.Labels)
        yes = yes or wanted.yes
        for given in wanted.photos:
            held = found.held.get(given.id)
            if held is None:
                errors.append({"file": given.id, "error": GONE})
            else:
                photos.append((held, uploads.label(given.label, here.limits)))
    taught = await here.change(found, lambda: found.teach(photos, yes, False) if photos else nothing(found), soon=True)
    here.metrics.add("photos_taught", taught["learnt"] + taught["staged"])
    return answer({**taught, "errors": [*errors, *taught["errors"]]})


def nothing(model: Learning) -> Values:
    """Return that nothing was taught."""
    now = model.info()
    counts = {"learnt": 0, "staged": 0, "known": 0}
    return {"version": now["version"], **counts, "errors": [], "suspicious": [], "info": now}


@router.post(
    "/{model}/relabel",
    tags=["learn"],
    response_model=schema.Taught,
    operation_id="relabel",
    openapi_extra=takes(schema.Relabels),
)
async def relabel(request: Request, model: str) -> Response:
    """Give photos another class."""
    here, found = desk(request), await changed(request, model)
    wanted = await uploads.body(request, schema.Relabels)
    pairs = [(one.id, uploads.label(one.label, here.limits)) for one in wanted.photos]
    return answer(await here.change(found, lambda: found.relabel(pairs)))


@router.post(
    "/{model}/learn",
    tags=["learn"],
    status_code=202,
    response_model=schema.Info,
    operation_id="learn",
    openapi_extra=takes(schema.Nothing),
)
async def learn(request: Request, model: str) -> Response:
    """Start an update of a trained model with what is staged, or continue an unfinished one."""
    await uploads.body(request, schema.Nothing)
    return await done(request, model, lambda found: found.learn(), 202)


@router.get(
    "/{model}/learn/events",
    tags=["learn"],
    operation_id="events",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(request: Request, model: str) -> Response:
    """Tell how far an update is, as server-sent events: progress, then done or error."""
    here, found = desk(request), await changed(request, model)
    if here.streams >= here.limits.streams:
        raise Refused(503, "too many listen already; try again", {"Retry-After": "5"})

    async def news() -> AsyncIterator[str]:
        async for one in here.events(found):
            yield one

    return StreamingResponse(news(), media_type="text/event-stream")


@router.delete("/{model}/learn", tags=["learn"], response_model=schema.Info, operation_id="discard")
async def discard(request: Request, model: str) -> Response:
    """Stop the update, and drop what is staged."""
    return await done(request, model, lambda found: found.discard())


@router.get("/{model}/classes", tags=["info"], response_model=schema.Classes, operation_id="classes")
async def classes(request: Request, model: str) -> Response:
    """Return the classes."""
    found = await asked(request, model)
    return answer({"classes": (await desk(request).read(found, found.info))["classes"]})


@router.post(
    "/{model}/rename",
    tags=["rename"],
    response_model=schema.Info,
    operation_id="rename",
    openapi_extra=takes(schema.Rename),
)
async def rename(request: Request, model: str) -> Response:
    """Give a class another name."""
    wanted = await uploads.body(request, schema.Rename)
    new = uploads.label(wanted.new, desk(request).limits)
    return await done(request, model, lambda found: found.rename(wanted.old, new))


@router.post(
    "/{model}/merge",
    tags=["merge"],
    response_model=schema.Info,
    operation_id="merge",
    openapi_extra=takes(schema.Merge),
)
async def merge(request: Request, model: str) -> Response:
    """Make one class of several."""
    wanted = await uploads.body(request, schema.Merge)
    into = uploads.label(wanted.into, desk(request).limits) if wanted.into else None
    return await done(request, model, lambda found: found.merge(wanted.classes, into))


@router.post(
    "/{model}/join", tags=["join"], response_model=schema.Info, operation_id="join", openapi_extra=takes(schema.Join)
)
async def join(request: Request, model: str) -> Response:
    """Take in what another model of the server has learnt."""
    wanted = await uploads.body(request, schema.Join)
    shelf = desk(request).shelf
    if wanted.model == model:
        raise Refused(409, "a model cannot be joined with itself")
    return await done(request, model, lambda found: found.join(learning_on(shelf, wanted.model)))


@router.post(
    "/{model}/forget",
    tags=["forget"],
    response_model=schema.Info,
    operation_id="forget",
    openapi_extra=takes(schema.Forget, files=True),
)
async def forget(request: Request, model: str) -> Response:
    """Forget classes, or photos, that are sent or named by their ids."""
    here, found = desk(request), await changed(request, model)
    if uploads.is_form(request):
        form = await uploads.form(request, here.limits)
        photos = await here.decode(found, form.files)
        if bad := [file.name for one, file in zip(photos, form.files, strict=True) if isinstance(one, Decoded)]:
            raise Refused(409, f"cannot read {bad[0]}; nothing is forgotten")
        ids = [one.id for one in photos if isinstance(one, Shown)]
        return await done(request, model, lambda found: found.forget_photos(ids))
    wanted = await uploads.body(request, schema.Forget)
    if (wanted.classes is None) == (wanted.photos is None):
        raise Refused(422, "name classes to forget, or photos; one of both")
    if wanted.classes is not None:
        names = [class_name(name) for name in wanted.classes]
        return await done(request, model, lambda found: found.forget(names))
    return await done(request, model, lambda found: found.forget_photos(wanted.photos or []))


@router.get("/{model}/history", tags=["history"], response_model=schema.Versions, operation_id="history")
async def history(request: Request, model: str) -> Response:
    """Return the versions."""
    found = await changed(request, model)
    return answer({"history": await desk(request).work(found, found.history)})


@router.post(
    "/{model}/undo", tags=["undo"], response_model=schema.Info, operation_id="undo", openapi_extra=takes(schema.Undo)
)
async def undo(request: Request, model: str) -> Response:
    """Return to the version before the last change, or to any that is kept."""
    wanted = await uploads.body(request, schema.Undo)
    return await done(request, model, lambda found: found.undo(wanted.to, wanted.of))


@router.post(
    "/{model}/prune",
    tags=["prune"],
    response_model=schema.Freed,
    operation_id="prune",
    openapi_extra=takes(schema.Nothing),
)
async def prune(request: Request, model: str) -> Response:
    """Remove earlier versions."""
    here, found = desk(request), await changed(request, model)
    await uploads.body(request, schema.Nothing)
    return answer({"freed_mb": round(await here.change(found, found.prune) / 1e6, 3)})


@router.get("/{model}/mistakes", tags=["report"], response_model=schema.Mistakes, operation_id="mistakes")
async def mistakes(request: Request, model: str) -> Response:
    """Return photos that the model would get wrong if it had not learnt them."""
    here, found = desk(request), await changed(request, model)
    return answer({"mistakes": await here.work(found, found.mistakes)})


@router.get("/{model}/suspicious", tags=["report"], response_model=schema.Suspicious, operation_id="suspicious")
async def suspicious(request: Request, model: str) -> Response:
    """Return photos whose class may be wrong."""
    here, found = desk(request), await changed(request, model)
    return answer({"suspicious": await here.work(found, found.suspicious)})


@router.get("/{model}/next", tags=["predict"], response_model=schema.Tray, operation_id="next")
async def tray(request: Request, model: str, top: Top = 3, unknown: Unknown = 0.05) -> Response:
    """Return photos that were predicted and not taught, the least sure first."""
    found = await asked(request, model)
    return answer({"photos": [predicted(one, one.file, top, unknown) for one in found.held.tray()]})


PAGE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'none'"


@router.get(
    "/{model}/report",
    tags=["report"],
    operation_id="report",
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
async def report(request: Request, model: str) -> Response:
    """Return the page of `edbl report`."""
    here, found = desk(request), await changed(request, model)
    data = await here.work(found, found.report)
    return Response(data, media_type="text/html", headers={"Content-Security-Policy": PAGE})


@router.get(
    "/{model}/photos/{id}",
    tags=["info"],
    operation_id="photo",
    responses={200: {"content": {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def photo(request: Request, model: str, id: schema.Id) -> Response:
    """Return a small JPEG of a photo that is held or kept."""
    here, found = desk(request), await asked(request, model)
    data = await here.read(found, lambda: found.photo(id))
    if data is None:
        raise Refused(404, "the server has no copy of this photo")
    return Response(data, media_type="image/jpeg")


@router.get(
    "/{model}/export",
    tags=["export"],
    operation_id="export",
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def export(request: Request, model: str) -> Response:
    """Return the model as an ONNX file."""
    return await desk(request).exported(await changed(request, model))


async def done(request: Request, name: str, work: Callable[[Learning], object], status: int = 200) -> Response:
    """Change a model, and return what it is then."""
    here, found = desk(request), await changed(request, name)

    def both() -> Values:
        work(found)
        return found.info()

    return answer(await here.change(found, both), status)
