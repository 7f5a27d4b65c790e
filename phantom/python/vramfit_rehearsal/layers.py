"""Numbers of the modules that choose entries, for `--set routing=drawn:SEED` (docs/values.md): each layer draws its own, its recomputation
draws them again, and all ranks that build the same model draw alike."""

import sys
import weakref


class Layers:
    def __init__(self, torch):
        self.module = torch.nn.Module
        self.numbers = weakref.WeakKeyDictionary()
        self.count = 0

    def number(self):
        """Of the innermost module whose method is running, in the order in which they first choose; 0 outside of all."""
        try:
            frame = sys._getframe(1)
            while frame is not None:
                names = frame.f_code.co_varnames
                owner = frame.f_locals.get(names[0]) if frame.f_code.co_argcount > 0 else None
                if isinstance(owner, self.module):
                    return self._number_of(owner)
                frame = frame.f_back
        except Exception:  # at the interpreter's end, modules are gone
            pass
        return 0

    def _number_of(self, owner):
        if owner not in self.numbers:
            self.count += 1
            self.numbers[owner] = self.count
        return self.numbers[owner]
