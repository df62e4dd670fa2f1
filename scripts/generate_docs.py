"""Writes docs/generated: the reference of ops, attributes, types and passes from
their TableGen files.

Usage: generate_docs.py MLIR_TBLGEN LLVM_INCLUDE_DIR OUT [--check]. With --check
nothing is written: exits 1 and names each file of OUT that is stale, missing or
left over.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = {
    "Ops.td": "-gen-op-doc",
    "Attrs.td": "-gen-attrdef-doc",
    "Types.td": "-gen-typedef-doc",
    "Enums.td": "-gen-enum-doc",
    "Passes.td": "-gen-pass-doc",
}


def document_name(path: Path) -> str:
    """The name of the document of a TableGen file; Passes.td takes its folder's."""
    if path.name != "Passes.td":
        return path.stem
    folder = path.parent
    return (folder.parent if folder.name == "Transforms" else folder).name + "Passes"


def generate(tblgen: str, llvm_include: str) -> dict[str, str]:
    """All documents: file name -> text."""
    documents = {}
    for path in sorted((ROOT / "include" / "kvcache").rglob("*.td")):
        generator = next((g for end, g in GENERATORS.items() if path.name.endswith(end)), None)
        # A file that includes nothing is a part of another one.
        if generator is None or '\ninclude "' not in path.read_text():
            continue
        result = subprocess.run(
            [tblgen, generator, str(path), f"-I{ROOT / 'include'}", f"-I{llvm_include}"],
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise SystemExit(f"{path}: {result.stderr}")
        # What tablegen writes has spaces at line ends.
        body = "\n".join(line.rstrip() for line in result.stdout.splitlines()).strip()
        name = document_name(path)
        source = path.relative_to(ROOT)
        documents[f"{name}.md"] = f"# {name}\n\nGenerated from `{source}` by `make doc`.\n\n{body}\n"
    return documents


def main() -> int:
    tblgen, llvm_include, out = sys.argv[1:4]
    check = "--check" in sys.argv[4:]
    folder = Path(out)
    documents = generate(tblgen, llvm_include)
    present = {path.name: path.read_text() for path in folder.glob("*.md")}
    if check:
        stale = sorted(n for n in documents.keys() | present.keys() if documents.get(n) != present.get(n))
        for name in stale:
            print(f"{folder / name} is not current: run `make doc`")
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in present.keys() - documents.keys():
        (folder / name).unlink()
    for name, text in documents.items():
        if present.get(name) != text:
            (folder / name).write_text(text)
    print(f"{len(documents)} documents in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
