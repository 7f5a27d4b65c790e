"""What tests of whole programs do under sanitizers, where everything takes ten times as long."""

import os

SANITIZED = bool({"ASAN_OPTIONS", "TSAN_OPTIONS"} & set(os.environ))
NARROW = ("--wrap", "layer", "--loss", "full", "--checkpointing", "none")  # a search of seconds there, too
