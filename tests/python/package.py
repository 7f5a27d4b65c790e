"""The package python/vramfit, with the program that is tested. Import it before vramfit."""
import os
import sys

os.environ["VRAMFIT_PROGRAM"] = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "python"))
