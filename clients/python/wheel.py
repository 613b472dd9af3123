"""Builds the wheels; standard library only, so that no build backend has to be installed.

    wheel.py OUT [--binary PATH]

writes kofm-VERSION-py3-none-any.whl, the client, and with --binary also
kofm_bin-VERSION-py3-none-PLATFORM.whl, which installs the binary as the command `kofm`.
`pip install kofm[bin]` takes both. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile
from typing import Dict, List, Tuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Wheels are archives with times; this one is the earliest that zip can hold.
TIME = (1980, 1, 1, 0, 0, 0)


def version() -> str:
    found = re.search(r'^version = "([^"]+)"', (HERE / "pyproject.toml").read_text(), re.M)
    workspace = re.search(r'^version = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.M)
    if not found or not workspace or found[1] != workspace[1]:
        sys.exit("wheel.py: the versions in pyproject.toml and Cargo.toml must be the same")
    return found[1]


def metadata(name: str, text: str, extra: List[str]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version()}",
        f"Summary: {text}",
        "License: MIT OR Apache-2.0",
        "Requires-Python: >=3.9",
        *extra,
    ]
    return "\n".join(lines) + "\n"


def write(path: pathlib.Path, tag: str, dist: str, files: Dict[str, Tuple[bytes, int]]) -> None:
    pure = "true" if tag.endswith("-any") else "false"
    files[f"{dist}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: kofm\nRoot-Is-Purelib: {pure}\nTag: {tag}\n".encode(),
        0o644,
    )
    record = ""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, (data, mode) in sorted(files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            add(wheel, name, data, mode)
        add(wheel, f"{dist}/RECORD", f"{record}{dist}/RECORD,,\n".encode(), 0o644)
    print(path)


def add(wheel: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, TIME)
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(info, data)


def licences() -> Dict[str, Tuple[bytes, int]]:
    return {name: ((ROOT / name).read_bytes(), 0o644) for name in ("LICENSE-MIT", "LICENSE-APACHE")}


def pure(out: pathlib.Path) -> None:
    dist = f"kofm-{version()}.dist-info"
    files: Dict[str, Tuple[bytes, int]] = {}
    for path in sorted((HERE / "src/kofm").iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"kofm/{path.name}"] = (path.read_bytes(), 0o644)
    for name, content in licences().items():
        files[f"{dist}/{name}"] = content
    extra = ["Provides-Extra: bin", f'Requires-Dist: kofm-bin=={version()} ; extra == "bin"']
    text = metadata("kofm", "Client of kofm: exclusive use of k out of M units", extra)
    text += "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text()
    files[f"{dist}/METADATA"] = (text.encode(), 0o644)
    files[f"{dist}/entry_points.txt"] = (b"[pytest11]\nkofm = kofm.pytest_plugin\n", 0o644)
    tag = "py3-none-any"
    write(out / f"kofm-{version()}-{tag}.whl", tag, dist, files)


def platform_tag() -> str:
    """The platform of a binary that was built on this machine."""
    machine = platform.machine().lower()
    if sys.platform.startswith("linux"):
        name, number = platform.libc_ver()
        if name == "glibc":
            major, minor = number.split(".")[:2]
            return f"manylinux_{major}_{minor}_{machine}"
        return f"musllinux_1_2_{machine}"
    if sys.platform == "darwin":
        return f"macosx_11_0_{machine}"
    sys.exit(f"wheel.py: no wheel with the binary for {sys.platform}; omit --binary")


def binary(out: pathlib.Path, path: pathlib.Path) -> None:
    dist = f"kofm_bin-{version()}.dist-info"
    text = metadata("kofm-bin", "The kofm binary: sites, command line, simulator", [])
    files: Dict[str, Tuple[bytes, int]] = {
        f"{dist}/METADATA": (text.encode(), 0o644),
        f"kofm_bin-{version()}.data/scripts/kofm": (path.read_bytes(), 0o755),
    }
    for name, content in licences().items():
        files[f"{dist}/{name}"] = content
    tag = f"py3-none-{platform_tag()}"
    write(out / f"kofm_bin-{version()}-{tag}.whl", tag, dist, files)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--binary", type=pathlib.Path)
    options = parser.parse_args()
    pure(options.out)
    if options.binary is not None:
        binary(options.out, options.binary)


if __name__ == "__main__":
    main()
