"""What PyInstaller has to put into a program with edgespec, and cannot see by itself."""

from pathlib import Path

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, copy_metadata

import edgespec
from edgespec.registry.manifest import models_folder

_PACKAGE = Path(edgespec.__file__).parent
_FILES = [path.relative_to(_PACKAGE.parent) for path in _PACKAGE.rglob("*.py")]
_LEFT_OUT = {"distill", "hooks", "models"}

# The sources too: their checksum is the name of the folder of compiled kernels.
datas = [
    *collect_data_files("edgespec", include_py_files=True),
    (str(models_folder()), "edgespec/models"),
    *copy_metadata("llguidance"),  # it asks for its own version
]
binaries = [*collect_dynamic_libs("llama_cpp"), *collect_dynamic_libs("llvmlite")]
# Many are imported when they are needed, by names that are put together.
hiddenimports = [
    ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    for file in _FILES
    if not _LEFT_OUT & set(file.parts)
]
excludedimports = ["torch", "matplotlib"]
