"""Compile the kernels ahead of time, without a GPU, and hold what they need against what each architecture has.

``python -m tests.kernels`` does all of them, which takes minutes; ``--only`` those whose names begin so, such as ``pool
'forward IN=16'``, and ``--arch`` some architectures. It prints registers, spilled bytes and shared memory of each, and
ends with code 1 if one does not compile, needs more than there is, or spills more than any did when it was last looked.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Bytes of shared memory that a program may have, and registers of a thread.
SHARED = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
REGISTERS = 255
SPILLED = 400  # bytes of a thread; 312 were the most, with Triton 3.9, from 8.0 on
MULTIPLIES = 80  # from which on bf16 is multiplied, and the kernels of a network are used
EVERYWHERE = ("product", "move")  # kernels that are used before, too
TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "i1"}
CHAINED = 90  # from which on a kernel may start before the one before it ends


@dataclass(frozen=True)
class Call:
    """A kernel as it is started: its types, its constants, and what Triton is told."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, int]
    divisible: tuple[str, ...]  # arguments that are multiples of 16, as most are

    @property
    def name(self) -> str:
        told = [f"{k}={self.constants[k]}" for k in ("IN", "OUT", "STRIDE", "MODE", "RELU") if k in self.constants]
        return " ".join([self.kernel.__name__.strip("_").removesuffix("_kernel"), *told])


class Recorder:
    """Stands in for a kernel, and takes note of how it is started."""

    def __init__(self, kernel: Any, calls: dict[str, Call]) -> None:
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def start(*given: Any, **how: Any) -> None:
            names: list[str] = self.kernel.arg_names
            values = dict(zip(names, given, strict=False)) | {k: how.pop(k) for k in list(how) if k in names}
            constants = {p.name: values[p.name] for p in self.kernel.params if p.is_constexpr}
            rest = {name: values[name] for name in names if name not in constants}
            types = {k: f"*{TYPES[v.dtype]}" if isinstance(v, torch.Tensor) else "i32" for k, v in rest.items()}
            signature = {name: types.get(name, "constexpr") for name in names}
            divisible = tuple(k for k, v in rest.items() if isinstance(v, torch.Tensor) or v % 16 == 0)
            call = Call(self.kernel, signature, constants, how, divisible)
            self.calls[repr((self.kernel.__name__, signature, constants, how))] = call

        return start


def recorded() -> list[Call]:
    """Return all kernels of a step of ResNet-32 with its teacher, of a head, and of augmentation."""
    from edbl.data import kernels as images
    from edbl.data.augment import Transform
    from edbl.nets import kernels
    from edbl.nets.backbones import ResNet
    from edbl.nets.fused import FusedResNet

    calls: dict[str, Call] = {}
    for module in (kernels, images):
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                setattr(module, name, Recorder(kernel, calls))
    fused = FusedResNet(ResNet(3, (16, 32, 64), 5, project=False), 32)
    x = torch.zeros(32, 3, 32, 32)
    torch.autograd.grad(fused.train(x, torch.bfloat16).sum(), fused.parameters())
    fused.infer(x, torch.bfloat16)
    kernels.product(torch.zeros(32, 64), torch.zeros(20, 64), torch.zeros(20))
    transform = Transform.of("crop-flip-trivial", 4, (0.5,) * 3, (0.25,) * 3, x.device, 0.25, 8)
    changes = transform.draw(x.to(torch.uint8), torch.Generator())
    images.move(x.to(torch.uint8), changes, transform.mean, transform.std, 4, 8)
    return list(calls.values())


@dataclass(frozen=True)
class Needs:
    """What a kernel needs."""

    registers: int
    spilled: int  # bytes of a thread
    shared: int  # bytes of a program


def compiled(call: Call, arch: int) -> Needs:
    """Compile a kernel for an architecture."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from edbl.nets.launch import TABLES, Free

    constants = dict(call.constants)
    options = {"num_warps": 4, **call.options}
    if "CHAINED" in constants and arch >= CHAINED:
        constants["CHAINED"], options["launch_pdl"] = True, True
    kind = call.kernel.__name__.removesuffix("_kernel")
    free = TABLES.get((arch // 10, arch % 10), {}).get(f"{kind}.{constants.get('OUT')}", Free())
    if free.registers:
        options["maxnreg"] = free.registers
    if free.block:
        constants["BLOCK"], options["num_warps"] = free.block, free.warps
    attributes = {(call.kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in call.divisible}
    named = {(call.kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(call.kernel, call.signature, named, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"{word}:(\d+)", told)[-1]) for word in ("REG", "STACK"))
    return Needs(registers, stack, made.metadata.shared)


def faults(needs: Needs, arch: int, name: str) -> Iterator[str]:
    """Yield what a kernel needs more of than there is, or than it should."""
    if needs.registers > REGISTERS:
        yield f"{needs.registers} registers"
    if needs.shared > SHARED[arch] * 1024:
        yield f"{needs.shared} bytes of shared memory, of {SHARED[arch] * 1024}"
    used = arch >= MULTIPLIES or name.split()[0] in EVERYWHERE
    if used and needs.spilled > SPILLED:
        yield f"{needs.spilled} bytes spilled, of {SPILLED}"


def main() -> int:
    """Compile, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--arch", nargs="*", type=int, default=list(SHARED))
    given = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit("unset TRITON_INTERPRET: interpreted kernels are not compiled")
    calls = [call for call in recorded() if call.name.startswith(tuple(given.only) or "")]
    wrong = 0
    for arch in given.arch:
        for call in calls:
            try:
                needs = compiled(call, arch)
                told = list(faults(needs, arch, call.name))
                more = f"; too much: {', '.join(told)}" if told else ""
                line = f"{needs.registers} registers, {needs.spilled} bytes spilled, {needs.shared} bytes shared{more}"
            except Exception as error:  # whatever a compiler stops with
                told = [f"{type(error).__name__}: {error}"]
                line = told[0]
            print(f"sm_{arch}  {call.name}: {line}", flush=True)
            wrong += bool(told)
    print(f"{len(calls)} kernels for {len(given.arch)} architectures, {wrong} wrong")
    return bool(wrong) or not calls


if __name__ == "__main__":
    sys.exit(main())
