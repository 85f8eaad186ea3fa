"""A model that was exported as one ONNX file: it answers, without PyTorch, and never changes."""

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from edbl.errors import EdblError
from edbl.serve.held import Said, Shown
from edbl.serve.limits import Limits
from edbl.serve.model import Served, Values

FORMAT = "1"
LARGEST = 2**31  # bytes of a file
OUTPUTS = ("probabilities", "cnn", "nme")


class Exported(Served):
    """The model of a file."""

    def __init__(self, name: str, file: Path, limits: Limits) -> None:
        super().__init__(name, file, limits)
        self._session, about = _opened(file)
        try:
            self.names = [str(one) for one in json.loads(about["classes"])]
            shape, unknown = json.loads(about["input"]), json.loads(about["unknown"])
            self._size = int(shape["height"])
            self._rate, at_most = float(unknown["rate"]), unknown["at_most"]
            self._least = -math.inf if at_most is None else float(at_most)
            self._settings = json.loads(about["settings"])
            self._readout = about["readout"]
            if about["format"] != FORMAT or self._readout not in OUTPUTS or shape["width"] != self._size:
                raise ValueError("its format, classifier or input is another")
            if not self.names or not 1 <= self._size <= 1024:
                raise ValueError("it has no class, or images of an odd size")
            self._check()
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise EdblError(f"'{file}' is no model that `edbl export` has written: {error}") from error
        self._cores = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="network")

    def _check(self) -> None:
        """Run it once: it may come from anywhere."""
        images = np.zeros((1, self._size, self._size, 3), np.uint8)
        try:
            scores, sure = self._session.run([self._readout, "sureness"], {"images": images})
        except Exception as error:  # of every kind, and none of them documented
            raise ValueError(str(error).partition("\n")[0]) from error
        if scores.shape != (1, len(self.names)) or sure.shape != (1,):
            raise ValueError("its outputs do not fit its classes")

    @property
    def image_size(self) -> int:
        """The side of the images that it takes."""
        return self._size

    def ask(self, shown: Sequence[Shown]) -> Sequence[Shown]:
        """Answer each photo in one thread, as many at a time as there are cores."""
        for one, (scores, sure) in zip(shown, self._cores.map(self._answer, shown), strict=True):
            one.said = Said(1, self.names, scores, sure, self._at, self._rate)
        return shown

    def _answer(self, one: Shown) -> tuple[Sequence[float], float]:
        image = np.ascontiguousarray(one.pixels.transpose(1, 2, 0))[None]
        scores, sure = self._session.run([self._readout, "sureness"], {"images": image})
        if self._readout == "nme":  # minus squared distances, which are no probabilities
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        return scores[0], float(sure[0])

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


def _opened(file: Path) -> tuple[Any, dict[str, str]]:
    """Return a session of one thread, several of which run at once, and the metadata of the file."""
    try:
        import onnxruntime
    except ImportError as error:
        raise EdblError("an exported model needs onnxruntime: run `pip install 'edbl[export]'`") from error
    from edbl.store import read_file

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = True
    try:
        session = onnxruntime.InferenceSession(read_file(file, LARGEST), options, providers=["CPUExecutionProvider"])
        return session, dict(session.get_modelmeta().custom_metadata_map)
    except OSError as error:
        raise EdblError(f"cannot read '{file}': {error.strerror}") from error
    except Exception as error:  # of every kind, and none of them documented
        raise EdblError(f"'{file}' is no ONNX file that can be run: {str(error).partition(chr(10))[0]}") from error
