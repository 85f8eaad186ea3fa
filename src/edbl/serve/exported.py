"""A model that was exported as one ONNX file: it answers, without PyTorch, and never changes."""

import json
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from edbl.errors import EdblError
from edbl.serve.declared import check
from edbl.serve.held import Said, Shown
from edbl.serve.limits import Limits
from edbl.serve.model import Served, Values
from edbl.text import is_class_name

FORMAT = "1"
LARGEST = 2**31  # bytes of a file
SLOWEST = 10.0  # seconds of one photo, after which its computation ends: a file may loop without end
# Most bytes that onnxruntime may have, beside three times those of the file, and about what a pixel of a photo takes:
# as many photos are computed at once as have room.
ROOM, PIXEL = 2**30, 2**10
FULL = f"it needs over {ROOM >> 20:,} MB of memory beside what its file holds"
SILENT = 4  # errors are raised; names in the file are not to be printed as they are
OUTPUTS = ("probabilities", "cnn", "nme")


class Exported(Served):
    """The model of a file."""

    def __init__(self, name: str, file: Path, limits: Limits) -> None:
        super().__init__(name, file, limits)
        self._session, about = _opened(file)
        try:
            self.names = json.loads(about["classes"])
            shape, unknown = json.loads(about["input"]), json.loads(about["unknown"])
            self._size = int(shape["height"])
            self._rate, at_most = float(unknown["rate"]), unknown["at_most"]
            self._least = -math.inf if at_most is None else float(at_most)
            if not 0 <= self._rate <= 1 or math.isnan(self._least) or self._least == math.inf:
                raise ValueError("its threshold is none")
            self._settings = json.loads(about["settings"])
            self._readout = about["readout"]
            if about["format"] != FORMAT or self._readout not in OUTPUTS or shape["width"] != self._size:
                raise ValueError("its format, classifier or input is another")
            if not isinstance(self.names, list) or not self.names or not 1 <= self._size <= 1024:
                raise ValueError("it has no class, or images of an odd size")
            if odd := [name for name in self.names if not isinstance(name, str) or not is_class_name(name)]:
                raise ValueError(f"{str(odd[0])[:80]!a} is no name of a class")
            if len(set(self.names)) != len(self.names):
                raise ValueError("it has a class twice")
            self._check()
        except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise EdblError(f"'{file}' is no model that `edbl export` has written: {error}") from error
        at_once = min(os.cpu_count() or 1, max(1, ROOM // (PIXEL * self._size**2)))
        self._cores = ThreadPoolExecutor(at_once, thread_name_prefix="network")

    def _check(self) -> None:
        """Run it once: it may come from anywhere."""
        images = np.zeros((1, self._size, self._size, 3), np.uint8)
        try:
            scores, sure = self._run(images)
        except EdblError as error:
            raise ValueError(str(error)) from error
        if scores.shape != (1, len(self.names)) or sure.shape != (1,):
            raise ValueError("its outputs do not fit its classes")

    @property
    def image_size(self) -> int:
        """The side of the images that it takes."""
        return self._size

    def ask(self, shown: Sequence[Shown]) -> Sequence[Shown]:
        """Answer each photo in one thread, as many at a time as there are cores and is room for."""
        for one, (scores, sure) in zip(shown, self._cores.map(self._answer, shown), strict=True):
            one.said = Said(1, self.names, scores, sure, self._at, self._rate)
        return shown

    def _answer(self, one: Shown) -> tuple[Sequence[float], float]:
        image = np.ascontiguousarray(one.pixels.transpose(1, 2, 0))[None]
        scores, sure = self._run(image)
        if self._readout == "nme":  # minus squared distances, which are no probabilities
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        return scores[0], float(sure[0])

    def _run(self, image: Any) -> tuple[Any, Any]:
        """Compute an image, for so long and no longer."""
        how = _options()
        clock = threading.Timer(SLOWEST, setattr, (how, "terminate", True))
        clock.daemon = True
        clock.start()
        try:
            scores, sure = self._session.run([self._readout, "sureness"], {"images": image}, how)
        except Exception as error:  # of every kind, and none of them documented
            why = f"it takes over {SLOWEST:g} s" if how.terminate else _why(error)
            raise EdblError(f"the model cannot compute a photo: {why}") from error
        finally:
            clock.cancel()
        return scores, sure

    def _at(self, rate: float) -> float:
        """Return the one threshold that the file has."""
        return self._least if rate else -math.inf

    def info(self) -> Values:
        """Return what the file says of the model."""
        settings = self._settings if isinstance(self._settings, dict) else {}
        return {
            "name": self.name,
            "exists": True,
            "version": 1,
            "method": str(settings.get("method", "")),
            "backbone": str(settings.get("backbone", "")),
            "keep": None,
            "image_size": self._size,
            "learns": "never",
            "classes": [{"name": name, "photos": 0, "accuracy": None, "photo": None} for name in self.names],
            "photos": 0,
            "staged": 0,
            "updating": False,
            "accuracy": None,
            "memory_mb": 0.0,
        }

    def close(self) -> None:
        """Let the threads end."""
        self._cores.shutdown(wait=False, cancel_futures=True)


def _options() -> Any:
    import onnxruntime

    how = onnxruntime.RunOptions()
    how.log_severity_level = SILENT
    return how


def _why(error: Exception) -> str:
    """Return in a line what onnxruntime says."""
    text = str(error)
    return FULL if "Available memory of" in text else text.partition("\n")[0]


def _bound(options: Any, most: int) -> None:
    """Let a session have so many bytes at most."""
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    try:
        onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": most}))
    except Exception as error:  # older versions keep the bound of the first file of a process
        if "already" not in str(error):
            raise
    options.add_session_config_entry("session.use_env_allocators", "1")


def _opened(file: Path) -> tuple[Any, dict[str, str]]:
    """Return a session of one thread, several of which run at once, and the metadata of the file."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EdblError("an exported model needs onnxruntime: run `pip install 'edbl[export]'`") from error
    from edbl.store import read_file

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        data = read_file(file, LARGEST)
        check(data)
        _bound(options, ROOM + 3 * len(data))
        # What is constant is computed with the first photo, which has a time limit.
        given = {"disabled_optimizers": ["ConstantFolding"], "enable_fallback": 0}  # the latter prints what is wrong
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], **given)
        return session, dict(session.get_modelmeta().custom_metadata_map)
    except OSError as error:
        raise EdblError(f"cannot read '{file}': {error.strerror}") from error
    except Exception as error:  # of every kind, and none of them documented
        raise EdblError(f"'{file}' is no ONNX file that can be run: {_why(error)}") from error
