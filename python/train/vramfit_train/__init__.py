"""The program vramfit-train, in bin/, which `vramfit run` finds there. There is nothing to import."""
