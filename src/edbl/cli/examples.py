"""The panels of ``edbl --help``, the commands in each, and two examples of every command."""

PANELS = {
    "Your photos": {
        "learn": ("edbl learn pets photos/january", "edbl learn pets photos/february --yes"),
        "predict": ("edbl predict pets new.jpg", "edbl predict pets 'inbox/*.jpg' --csv"),
        "serve": ("edbl serve pets", "edbl serve models --port 8080"),
        "info": ("edbl info pets", "edbl info pets --json"),
        "forget": ("edbl forget pets cat", "edbl forget pets --photo photos/january/cat/3.jpg"),
        "rename": ("edbl rename pets cat 'tabby cat'", "edbl rename models/pets dog puppy"),
        "merge": ("edbl merge pets cat kitten", "edbl merge pets cat kitten --as feline"),
        "join": ("edbl join animals pets birds", "edbl join all models/a models/b models/c"),
        "history": ("edbl history pets", "edbl history pets --json"),
        "undo": ("edbl undo pets", "edbl undo pets --to 3"),
        "prune": ("edbl prune pets", "edbl prune models/pets"),
        "export": ("edbl export pets pets.onnx", "edbl export pets pets.onnx --unknown 0.01"),
    },
    "Experiments": {
        "run": (
            "edbl run edbl --data digits --preset quick",
            "edbl run edbl bic --data cifar100 --tasks 10 --seeds 3 --out runs/both",
        ),
        "resume": ("edbl resume runs/edbl", "edbl resume runs/mine --method mine.py"),
        "watch": ("edbl watch runs", "edbl watch runs/both --once"),
        "check": ("edbl check mine.py", "edbl check er"),
        "tune": (
            "edbl tune bic --data digits --out searches/bic",
            "edbl tune edbl --search space.toml --trials 100 --out searches/edbl",
        ),
        "compare": ("edbl compare runs/both --methods edbl,bic", "edbl compare runs/before runs/after"),
        "report": ("edbl report runs/edbl runs/bic", "edbl report runs/both --out table.tex"),
        "list": ("edbl list methods", "edbl list options edbl --data cifar100"),
    },
    "The paper": {
        "reproduce": ("edbl reproduce table3", "edbl reproduce all --scale small --minutes 60"),
        "study": ("edbl study studies/rule/distillation.toml", "edbl study mine.toml --seeds 3"),
        "results": ("edbl results docs/results.md README.md", "edbl results page.md --results results"),
    },
    "Other": {
        "demo": ("edbl demo", "edbl demo photos"),
        "doctor": ("edbl doctor", "edbl doctor --json"),
        "bench": ("edbl bench", "edbl bench --verify"),
    },
}
DATA = {  # of the commands below `edbl data`
    "fetch": ("edbl data fetch cifar100", "edbl data fetch cifar10 --data-dir data"),
    "verify": ("edbl data verify cifar100", "edbl data verify digits"),
    "example": ("edbl data example photos", "edbl data example photos --classes 3 --photos 20"),
}


def epilog(examples: tuple[str, ...]) -> str:
    """Return the last lines of a command's help."""
    return "\n\n".join(["Examples:", *examples])
