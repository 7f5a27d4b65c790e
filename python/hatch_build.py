"""What makes the package a wheel of one platform: the program and the stand-ins that scripts/wheel compiled."""
import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    def initialize(self, version, build_data):
        if version == "editable":  # finds the program on PATH, or as VRAMFIT_PROGRAM says
            return
        files, platform = os.environ.get("VRAMFIT_WHEEL_FILES"), os.environ.get("VRAMFIT_WHEEL_PLATFORM")
        if not files or not platform:
            raise SystemExit("the program is compiled first: run scripts/wheel in the root of the sources")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        for name in ("bin", "lib", "licenses"):
            build_data["force_include"][os.path.join(files, name)] = f"vramfit/{name}"
