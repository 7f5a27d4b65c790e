"""axolotl's kernels for adapters in a model of transformers, as its command line puts them there (loaders/patch_manager.py), without the rest of axolotl."""

import importlib
import importlib.util
import json
import pathlib
import sys
import types


class Settings(dict):
    """Keys of its file as attributes; None for those that aren't there."""

    __getattr__ = dict.get


def patches():
    """Its module. The package of its callbacks imports what evaluates models; one function is needed of it, which has a file of its own."""
    name = "axolotl.utils.callbacks"
    package = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(importlib.util.find_spec("axolotl.utils").origin).parent / "callbacks")]
    sys.modules.setdefault(name, package)
    return importlib.import_module("axolotl.monkeypatch.lora_kernels")


def with_kernels(config, parts, liger, build):
    """The model with adapters that `build` makes of the folder `config`, with `parts` of them: mlp, qkv, o; and with Liger's, if `liger` isn't None, as its plugin for axolotl replaces classes before a model is loaded."""
    settings = Settings({"base_model": config, **{f"lora_{part}_kernel": True for part in parts}})
    module = patches()
    if settings.lora_qkv_kernel or settings.lora_o_kernel:
        module.patch_self_attn_lora(settings)
    if liger is not None:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
        MODEL_TYPE_TO_APPLY_LIGER_FN[json.loads(pathlib.Path(config).read_text(encoding="utf-8"))["model_type"]](**liger)
    return module.apply_lora_kernel_patches(build(), settings)


def take_over_fsdp(has_codes):
    """Its preparation of FSDP2 in the place of accelerate's; `has_codes`: of a base in 4 bits."""
    from axolotl.monkeypatch.accelerate.fsdp2 import patch_accelerate_fsdp2
    patch_accelerate_fsdp2()
    if not has_codes:
        return
    from axolotl.monkeypatch import fsdp2_qlora
    fsdp2_qlora.apply_init_sharded_param_patch()
    fsdp2_qlora.apply_init_unsharded_param_patch()
    fsdp2_qlora.apply_init_dtype_attrs_patch()
