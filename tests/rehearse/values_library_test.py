"""Which library computes values, by the version and the C++ ABI of torch; torch itself is not needed."""
import os
import shutil
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "phantom", "python"))
from vramfit_rehearsal import values_library  # noqa: E402

LOADABLE = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "..", "lib", "phantom", "libvramfit-phantom-audit.so")


def torch(version, abi=True):
    return types.SimpleNamespace(__version__=version, __file__="/nowhere/torch/__init__.py", _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=abi))


class Libraries(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        os.makedirs(os.path.join(self.folder, "include", "phantom", "values"))
        self.enterContext(mock.patch.dict(os.environ, {"VRAMFIT_PHANTOM_LIB": self.folder, "XDG_CACHE_HOME": self.folder, "CXX": "/bin/false"}))

    def put(self, name):
        shutil.copy(LOADABLE, os.path.join(self.folder, name))

    def found(self, *about):
        library, why_not = values_library.find(torch(*about))
        self.assertEqual(library is None, bool(why_not))
        return library and os.path.basename(library._name)

    def test_a_release_has_the_library_of_its_minor_version_and_abi(self):
        for name in ("libvramfit-values-2.6.so", "libvramfit-values-2.6-abi0.so", "libvramfit-values-2.15.so"):
            self.put(name)
        self.assertEqual(self.found("2.6.0+cu124", False), "libvramfit-values-2.6-abi0.so")
        self.assertEqual(self.found("2.6.1"), "libvramfit-values-2.6.so")
        self.assertEqual(self.found("2.15.0+cu132"), "libvramfit-values-2.15.so")
        self.assertIsNone(self.found("2.15.0", False))

    def test_what_is_between_releases_has_none(self):
        self.put("libvramfit-values-2.9.so")
        for version in ("2.9.0a0+50eac811a6", "2.9.0.dev20250801+cu128", "2.16.0"):
            self.assertIsNone(self.found(version), version)

    def test_a_library_that_does_not_load_is_as_none(self):
        with open(os.path.join(self.folder, "libvramfit-values-2.9.so"), "wb") as file:
            file.write(b"\x7fELF")
        library, why_not = values_library.find(torch("2.9.1"))
        self.assertIsNone(library)
        self.assertIn("has no library for torch 2.9.1, and /bin/false could not make one", why_not)

    def test_one_that_was_compiled_is_kept(self):
        path = os.path.join(values_library.cache_folder(), f"2.16.0-{values_library.fingerprint(self.folder)}.so")
        os.makedirs(os.path.dirname(path))
        shutil.copy(LOADABLE, path)
        self.assertEqual(self.found("2.16.0"), os.path.basename(path))


if __name__ == "__main__":
    unittest.main()
