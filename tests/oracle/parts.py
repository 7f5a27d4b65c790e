"""Runs the part of an oracle script that the command line names."""

import logging
import sys
import warnings

import torch


def run_part(*parts):
    """Ends the process: 0 if the part (the only one, where there is one) returns true. The libraries' warnings are hidden."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    named = {part.__name__: part for part in parts}
    chosen = parts[0] if len(parts) == 1 else named[sys.argv[1]]
    sys.exit(0 if chosen() else 1)
