"""The pages of the API reference: which public names stand together, and what Sphinx is told about each."""

import inspect

import diffsparse as ds

GROUPS = {
    "Budgets": ("Budget",),
    "Gates in a model": ("sparsify", "gating_report", "parameter_groups", "sparsity", "replicate_gates", "gathered"),
    "Compaction": ("compact", "Compacted", "Plan", "apply_plan", "slice_optimizer", "register_rule"),
    "Files and export": ("save", "load", "export_onnx", "CheckpointError"),
    "Measuring": ("measure", "Measurement", "Comparison"),
    "Penalties": (
        "Penalty", "L1", "GroupL21", "ExclusiveL12", "Lp", "Norm", "GradualStrength", "ProximalStep", "auto_strength",
    ),
    "Moving averages": ("MovingAverage",),
    "Layers": (
        "SparseBatchNorm1d", "SparseBatchNorm2d", "SparseBatchNorm3d", "SparseSum", "SparseAdjacency",
        "GraphConvolution",
    ),
    "Gates": ("SignedGate", "SimplexGate", "MatrixGate"),
    "Errors": ("SparsityError", "SparsityWarning"),
}  # fmt: skip
"""By the title of its page, names of `diffsparse.__all__`."""
FUNCTIONAL = "Functional"


def pages() -> dict[str, str]:
    """The text of every page, by the name of its file."""
    made = {_file(title): _page(title, "diffsparse", names) for title, names in GROUPS.items()}
    left = sorted(set(ds.__all__) - {"functional"} - {name for names in GROUPS.values() for name in names})
    if left:
        # a name that nobody has put into a group yet is not lost
        made[_file("More")] = _page("More", "diffsparse", left)
    made[_file(FUNCTIONAL)] = _page(FUNCTIONAL, "diffsparse.functional", ds.functional.__all__)
    links = "\n".join(name.removesuffix(".md") for name in made)
    made["reference.md"] = f"# API reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{links}\n```\n"
    return made


def _file(title: str) -> str:
    return f"reference-{title.lower().replace(' ', '-')}.md"


def _page(title: str, module: str, names: tuple[str, ...] | list[str]) -> str:
    parts = [f"# {title}", f"```{{eval-rst}}\n.. currentmodule:: {module}\n```"]
    source = ds if module == "diffsparse" else ds.functional
    for name in names:
        if not hasattr(source, name):
            raise SystemExit(f"{module} has no {name}: take it out of the groups in docs/site/reference.py")
        kind = "class" if inspect.isclass(getattr(source, name)) else "function"
        options = "\n   :members:" if kind == "class" else ""
        parts.append(f"## `{name}`\n\n```{{eval-rst}}\n.. auto{kind}:: {module}.{name}{options}\n```")
    return "\n\n".join(parts) + "\n"
