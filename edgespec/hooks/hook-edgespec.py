"""What PyInstaller has to put into a program with edgespec, and cannot see by itself."""

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs, collect_submodules

from edgespec.registry.manifest import models_folder

# The sources too: their checksum is the name of the folder of compiled kernels.
datas = [
    *collect_data_files("edgespec", include_py_files=True),
    (str(models_folder()), "edgespec/models"),
]
binaries = [*collect_dynamic_libs("llama_cpp"), *collect_dynamic_libs("llvmlite")]
hiddenimports = [
    *collect_submodules("edgespec", filter=lambda name: "distill" not in name),
    *collect_submodules("llama_cpp", filter=lambda name: "server" not in name),
]
excludedimports = ["torch", "matplotlib"]
