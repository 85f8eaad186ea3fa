"""What the API takes and gives, as its OpenAPI schema has it."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

Id = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
ClassName = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True)]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value  # as JSON Schema has integers


Number = Annotated[int, Field(ge=1, le=10**9), BeforeValidator(_whole)]


class Body(BaseModel):
    """What a request says: exactly these values, of these types."""

    model_config = ConfigDict(strict=True, extra="forbid")


class NewModel(Body):
    """A model to make, or how one is made that is not there yet."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    keep: Literal["features", "photos", "nothing"] | None = None
    method: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")] | None = None


class Ids(Body):
    """Photos that the server still holds."""

    photos: Annotated[list[Id], Field(min_length=1, max_length=1000)]


class Labelled(Body):
    """A photo and its class."""

    id: Id
    label: ClassName


class Labels(Body):
    """Photos that the server still holds, or keeps, with their classes."""

    photos: Annotated[list[Labelled], Field(min_length=1, max_length=1000)]
    yes: bool = False


class Relabels(Body):
    """Photos with other classes than they had."""

    photos: Annotated[list[Labelled], Field(min_length=1, max_length=1000)]


class Rename(Body):
    """A class and its new name."""

    old: ClassName
    new: ClassName


class Merge(Body):
    """Classes that are to be one."""

    classes: Annotated[list[ClassName], Field(min_length=1, max_length=1000)]
    into: ClassName | None = None


class Join(Body):
    """Another model."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class Forget(Body):
    """Classes or photos to forget, one of both."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": [name], "properties": {name: {"type": "array"}}} for name in ("classes", "photos")]
        }
    )
    classes: Annotated[list[ClassName], Field(min_length=1, max_length=1000)] | None = None
    photos: Annotated[list[Id], Field(min_length=1, max_length=1000)] | None = None


class Undo(Body):
    """A version to go to; none: that before the last change. Where ``of`` is given, the model must be at that one."""

    to: Number | None = None
    of: Number | None = None


class Nothing(Body):
    """Nothing."""


class Error(BaseModel):
    """What was wrong."""

    error: str


class Accuracy(BaseModel):
    """How many were right, and the 95% interval of the share."""

    right: int
    of: int
    low: float
    high: float


class Class(BaseModel):
    """A class of a model."""

    name: str
    photos: int
    accuracy: Accuracy | None
    photo: str | None


class Info(BaseModel):
    """What a model is."""

    name: str
    exists: bool
    version: int
    method: str
    backbone: str
    keep: str | None
    image_size: int
    learns: Literal["at once", "by updates", "never"]
    classes: list[Class]
    photos: int
    staged: int
    updating: bool
    accuracy: Accuracy | None
    memory_mb: float


class MostOf(BaseModel):
    """What a request may have."""

    files: int
    file_mb: int
    request_mb: int


class Models(BaseModel):
    """The models of the server."""

    models: list[Info]
    writable: bool
    several: bool
    limits: MostOf


class Likely(BaseModel):
    """A class with its probability."""

    name: str
    probability: float


class Prediction(BaseModel):
    """What a model says of a photo; ``error`` is there where it could not be read."""

    file: str
    id: str | None
    unknown: bool
    classes: list[Likely]
    error: str | None = None


class Predictions(BaseModel):
    """What a version of a model says of photos, in their order."""

    version: int
    predictions: list[Prediction]


class FileError(BaseModel):
    """A photo, and why it was not learnt."""

    file: str
    error: str


class Doubtful(BaseModel):
    """A photo whose class may be wrong."""

    id: str
    file: str
    label: str
    looks_like: str
    probability: float
    why: str


class Taught(BaseModel):
    """What became of photos that were taught."""

    version: int
    learnt: int
    staged: int
    known: int
    errors: list[FileError]
    suspicious: list[Doubtful]
    info: Info


class Classes(BaseModel):
    """The classes of a model."""

    classes: list[Class]


class Version(BaseModel):
    """A version of a model."""

    version: int
    what: str
    when: str
    classes: int
    current: bool


class Versions(BaseModel):
    """The versions of a model, oldest first."""

    history: list[Version]


class Freed(BaseModel):
    """How much was removed."""

    freed_mb: float


class Mistake(BaseModel):
    """A photo that the model would get wrong if it had not learnt it."""

    id: str
    label: str
    said: str
    probability: float
    thumbnail: bool


class Mistakes(BaseModel):
    """Such photos, those first of which it would be surest."""

    mistakes: list[Mistake]


class Odd(BaseModel):
    """A photo of the model whose class may be wrong."""

    id: str
    label: str
    looks_like: str | None
    probability: float
    thumbnail: bool


class Suspicious(BaseModel):
    """Such photos, the oddest first."""

    suspicious: list[Odd]


class Tray(BaseModel):
    """Photos that were asked about and not taught, the least sure first."""

    photos: list[Prediction]


class Health(BaseModel):
    """That the server answers."""

    status: Literal["ok"]
