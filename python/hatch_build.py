"""What makes the packages wheels of one platform: the programs and libraries that scripts/wheel compiled. And what they ask for: each other, in the
same version, and the PyTorch that the engine is compiled with."""
import os
import pathlib
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCES = pathlib.Path(os.path.abspath(__file__)).parents[1]


def found(pattern, *path):
    return re.search(pattern, SOURCES.joinpath(*path).read_text(encoding="utf-8"), re.M)[1]


class VersionsHook(MetadataHookInterface):
    def update(self, metadata):
        version = found(r"project\(vramfit VERSION ([0-9.]+)", "CMakeLists.txt")
        if metadata["name"] == "vramfit":
            metadata["optional-dependencies"] = {"train": [f"vramfit-train=={version}"]}
        else:
            metadata["dependencies"] = [f"vramfit=={version}", found(r"^(torch==\S+)$", "scripts", "requirements-run.txt")]


class ProgramHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":  # finds the program on PATH, or as VRAMFIT_PROGRAM says
            return
        files, platform = os.environ.get("VRAMFIT_WHEEL_FILES"), os.environ.get("VRAMFIT_WHEEL_PLATFORM")
        if not files or not platform:
            raise SystemExit("the program is compiled first: run scripts/wheel in the root of the sources")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        package = self.metadata.core.raw_name.replace("-", "_")
        for name in os.listdir(files):
            build_data["force_include"][os.path.join(files, name)] = f"{package}/{name}"
