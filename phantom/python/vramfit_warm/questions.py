"""What GPUs are like, for modules that ask for it while they are imported: bitsandbytes and torchao do, and transformers imports both. PyTorch starts up its
GPUs to answer, after which it can't be forked, so a fork is asked instead."""
import json
import os
import sys
import types

ANSWERED = ("get_device_capability", "get_device_properties", "current_device")


class Questions:
    """While `imports` is true, torch.cuda's functions of ANSWERED answer so. Modules may keep them; afterwards they are PyTorch's own again."""

    def __init__(self, torch):
        self.cuda, self.imports, self.known = torch.cuda, True, None
        self.own = {name: getattr(torch.cuda, name) for name in ANSWERED}
        for name in ANSWERED:
            setattr(torch.cuda, name, self.function(name))

    def function(self, name):
        own, answer = self.own[name], getattr(self, name)

        def asked(*args, **kwargs):
            return answer(*args, **kwargs) if self.imports and not self.cuda.is_initialized() else own(*args, **kwargs)

        return asked

    def get_device_capability(self, device=None):
        properties = self.get_device_properties(device)
        return properties.major, properties.minor

    def get_device_properties(self, device=None):
        if self.known is None:
            self.known = self.ask_in_a_fork()
        number = getattr(device, "idx", getattr(device, "index", device))  # of torch.cuda.device, torch.device
        return self.known[int(str(number).rpartition(":")[2]) if str(number) not in ("None", "cuda", "-1") else 0]

    def current_device(self):
        return 0

    def ask_in_a_fork(self):
        answer, said = os.pipe()
        fork = os.fork()
        if fork == 0:
            try:
                self.end()
                own = [self.own["get_device_properties"](number) for number in range(self.cuda.device_count())]
                found = [{name: getattr(each, name) for name in dir(each) if not name.startswith("_") and isinstance(getattr(each, name), (int, float, str))} for each in own]
                os.write(said, json.dumps(found).encode())
            except Exception as error:
                print(f"what GPUs there are: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        os.close(said)
        with open(answer, encoding="utf-8") as file:
            text = file.read()
        os.waitpid(fork, 0)
        return [types.SimpleNamespace(**each) for each in json.loads(text)]

    def end(self):
        self.imports = False
        for name in ANSWERED:
            setattr(self.cuda, name, self.own[name])
        interface = sys.modules.get("torch._dynamo.device_interface")
        if interface is not None:
            interface.caching_worker_device_properties.clear()  # of what was answered here
