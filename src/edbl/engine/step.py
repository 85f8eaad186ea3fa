"""The training step: gather, augment, mix, forward, backward, update.

The step reads and writes fixed buffers and never waits for the device. On a GPU it is captured once per phase as a
CUDA graph and replayed, so a step costs one launch; on a CPU the same function runs as it is.
"""

from contextlib import nullcontext

import torch
from torch import Generator, Tensor

from edbl.data.augment import Transform, Views
from edbl.data.mixing import Batch
from edbl.engine.sgd import SGD
from edbl.methods.base import Phase

WARM_UP = 3  # steps before a capture, in which libraries make their choices and the optimiser its buffers


class Step:
    """One step of a phase, to be called once for each row of the epoch's batches."""

    def __init__(
        self,
        phase: Phase,
        classes: int,
        transform: Transform | Views,
        generator: Generator,
        *,
        bf16: bool,
        graph: bool,
    ) -> None:
        self.phase = phase
        self.transform = transform
        self.generator = generator
        device = generator.device
        self.bf16 = bf16
        self.use_graph = graph and device.type == "cuda"
        self.ahead = phase.teacher if device.type == "cuda" else None  # a teacher answers beside the student's own pass
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.images = 0  # images of a batch after mixing
        self.one_hot = torch.eye(classes, device=device)
        self.number = torch.zeros(1, dtype=torch.int64, device=device)  # of the step within the epoch
        self.batches = torch.empty(0, dtype=torch.int64, device=device)  # [steps, batch]
        self.losses = torch.empty(0, device=device)  # [steps]
        self.optimiser = SGD(phase.params, phase.backbone, phase.optim)

    def begin_epoch(self, batches: Tensor, rate: float) -> None:
        """Take the index batches and the learning rate of an epoch."""
        if batches.shape != self.batches.shape:
            self.batches = torch.empty_like(batches)
            self.losses = torch.empty(len(batches), device=batches.device)
        self.batches.copy_(batches)
        self.losses.zero_()
        self.number.zero_()
        self.optimiser.set_rate(rate)

    def __call__(self) -> None:
        """Make one step."""
        if self.graph is None and self.use_graph and self.calls == WARM_UP:
            self._capture()
        self.calls += 1
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def _capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        self.optimiser.zero_grad()
        with torch.cuda.graph(self.graph):
            self._step()

    def _batch(self) -> Batch:
        index = self.batches.index_select(0, self.number).squeeze(0)
        images = self.phase.draw.data[index]
        labels = self.one_hot[images.y]  # [batch, seen]
        return self.phase.draw.mixing(Batch(self.transform.augment(images.x, self.generator), labels), self.generator)

    def _step(self) -> None:
        batch = self._batch()
        self.images = len(batch.x)
        # A graph must not keep casts of weights from one step for the next, so nothing is cached.
        cast = torch.autocast(batch.x.device.type, torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()
        with cast:
            if self.ahead is not None:
                self.ahead.ask(batch.x)
            loss = self.phase.loss(batch)
            if self.ahead is not None:
                self.ahead.wait()
        self.optimiser.zero_grad()
        loss.backward()
        if self.phase.adjust is not None:
            with cast:
                self.phase.adjust(self.generator)
        self.optimiser.step()
        self.losses.index_copy_(0, self.number, loss.detach().float().view(1))
        self.number += 1
