"""Build the site: pages and a reference made from docstrings in, HTML out.

`make docs` runs `python docs/build_site.py build/site`. Pages are copied, so that nothing is
written beside them.
"""

from __future__ import annotations

import inspect
import io
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType

from sphinx.cmd.build import build_main
from sphinx.ext.napoleon import Config, GoogleDocstring

from turbine import config
from turbine.cli.main import main, verbs
from turbine.kernel import lang
from turbine.kernel.trace.op import Op

DOCS = Path(__file__).parent
# The pages of the reference: a title, the modules whose names it lists, and what comes first.
REFERENCE = {
    "aot": ("Export", ["turbine.aot"], "See [export](../export.md) for how they work together."),
    "torch_compile": (
        "torch.compile",
        ["turbine.dynamo"],
        'The backend is called "turbine"; see [torch.compile](../torch_compile.md).',
    ),
    "eager": ("The turbine device", ["turbine.eager"], "See [the turbine device](../eager.md)."),
    "ops": ("Custom ops", ["turbine.ops"], "See [custom ops](../custom_ops.md)."),
    "kernel": (
        "Kernels",
        ["turbine.kernel", "turbine.kernel.gen"],
        "See [kernels](../kernels.md).",
    ),
    "runtime": ("Running", ["turbine.runtime.artifact", "turbine.runtime"], ""),
    "passes": ("Transforms of IR", ["turbine.passes"], "See [transforms](../transforms.md)."),
}


def build(output: Path) -> int:
    """Build the site; warnings are errors."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        for page in [*DOCS.glob("*.md"), *DOCS.glob("*.svg"), DOCS / "conf.py"]:
            shutil.copy(page, source)
        changes = (DOCS.parent / "CHANGELOG.md").read_text()
        (source / "changelog.md").write_text(changes.replace("](docs/", "]("))
        folder = source / "reference"
        folder.mkdir()
        for page, text in _reference().items():
            (folder / f"{page}.md").write_text(text)
        return build_main(["-q", "-W", "--keep-going", "-b", "html", str(source), str(output)])


def _reference() -> dict[str, str]:
    pages = {page: _module_page(*row) for page, row in REFERENCE.items()}
    return {**pages, "lang": _lang_page(), "config": _config_page(), "cli": _cli_page()}


def _module_page(title: str, modules: list[str], intro: str) -> str:
    sections = [f"# {title}", intro]
    for name in modules:
        module = import_module(name)
        for public, value in _public(module).items():
            if inspect.isclass(value):
                body = f"autoclass:: {name}.{public}\n   :members:"
            elif inspect.isfunction(value):
                body = f"autofunction:: {name}.{public}"
            else:
                continue
            sections.append(f"## {public}\n\n```{{eval-rst}}\n.. {body}\n```")
    return "\n\n".join(sections) + "\n"


def _public(module: ModuleType) -> dict[str, object]:
    """What a module offers: what it defines, or imports under the same name on purpose."""
    names = [name for name in vars(module) if not name.startswith("_")]
    values = {name: vars(module)[name] for name in names}
    is_package = hasattr(module, "__path__")
    return {
        name: value
        for name, value in values.items()
        if getattr(value, "__module__", "").startswith("turbine")
        and (is_package or value.__module__ == module.__name__)
    }


def _lang_page() -> str:
    sections = ["# The kernel language", inspect.getdoc(lang) or ""]
    for name, value in sorted(vars(lang).items()):
        if isinstance(value, Op):
            head, _, doc = (value.__doc__ or "").partition("\n\n")
        elif inspect.isfunction(value) and not name.startswith("_"):
            head, doc = f"{name}{_plain(inspect.signature(value))}", inspect.getdoc(value) or ""
        else:
            continue
        body = str(GoogleDocstring(doc, Config())).replace("\n", "\n   ")
        sections.append(f"```{{eval-rst}}\n.. py:function:: tkl.{head}\n\n   {body}\n```")
    return "\n\n".join(sections) + "\n"


def _plain(signature: inspect.Signature) -> inspect.Signature:
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=signature.empty)


def _config_page() -> str:
    rows = [
        f"| `{name}` | `{option.default!r}` | `TURBINE_{name.upper()}` | {option.metadata['doc']} |"
        for name, option in config.OPTIONS.items()
    ]
    head = "# Options\n\nAn argument wins over `turbine.config.set`, which wins over the variable."
    return "\n".join(
        [head, "", "| option | default | variable | what it does |", "|-|-|-|-|", *rows]
    )


def _cli_page() -> str:
    sections = ["# Command line"]
    for verb in verbs():
        with redirect_stdout(io.StringIO()) as shown:
            main([verb, "--help"])
        sections.append(f"## turbine {verb}\n\n```text\n{shown.getvalue()}```")
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
