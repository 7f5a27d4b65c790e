"""What the program prints is what configs/schemas says, checked with the few keywords that those schemas use."""

import json
import os
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
SCHEMAS = os.path.join(SOURCE, "configs", "schemas")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}
KNOWN = {"$schema", "$defs", "$ref", "title", "description", "type", "required", "properties", "additionalProperties", "items",
         "enum", "const", "minimum", "minItems", "maxItems", "anyOf"}


def load(name):
    with open(os.path.join(SCHEMAS, name), encoding="utf-8") as file:
        return json.load(file)


def is_type(value, name):
    if name in ("integer", "number") and isinstance(value, bool):
        return False
    return isinstance(value, TYPES[name])


def check(value, schema, root, where="$"):
    """Raises AssertionError naming the place where `value` breaks `schema`."""
    assert not set(schema) - KNOWN, f"{where}: the schema uses {set(schema) - KNOWN}"
    if "$ref" in schema:
        name, _, path = schema["$ref"].partition("#")
        root = load(name) if name else root
        target = root
        for part in path.strip("/").split("/"):
            target = target[part]
        return check(value, target, root, where)
    if "anyOf" in schema:
        assert any(is_like(value, each, root) for each in schema["anyOf"]), f"{where}: {value!r} is none of {schema['anyOf']}"
    if "const" in schema:
        assert value == schema["const"], f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r} is not in {schema['enum']}"
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(is_type(value, name) for name in names), f"{where}: {value!r} is not {names}"
    if "minimum" in schema and value is not None:
        assert value >= schema["minimum"], f"{where}: {value} < {schema['minimum']}"
    if isinstance(value, dict):
        check_object(value, schema, root, where)
    if isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)), f"{where}: {len(value)} items"
        for i, item in enumerate(value):
            check(item, schema.get("items", {}), root, f"{where}[{i}]")


def is_like(value, schema, root):
    try:
        check(value, schema, root)
    except AssertionError:
        return False
    return True


def check_object(value, schema, root, where):
    for key in schema.get("required", []):
        assert key in value, f"{where}.{key}: missing"
    for key, item in value.items():
        known = schema.get("properties", {})
        assert key in known or schema.get("additionalProperties", True), f"{where}.{key}: not in the schema"
        check(item, known.get(key, {}), root, f"{where}.{key}")


def program(*arguments, expected=0):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expected, (arguments, done.returncode, done.stderr)
    return done.stdout


def sums(rank):
    parts = rank["breakdown"]
    outside = ("fragmentation", "outside_allocator")
    return sum(v for k, v in parts.items() if k not in outside), sum(parts.values())


class Schemas(unittest.TestCase):
    def validate(self, document, name):
        schema = load(f"{name}.schema.json")
        check(document, schema, schema)
        self.assertEqual(document["schema"], f"vramfit/{name}@1")

    def test_an_estimate_is_as_its_schema_says_and_its_breakdown_sums_exactly(self):
        for gpus in ("2xcpu-1GiB", "8xH100-80GB"):
            estimate = json.loads(program("estimate", MODEL, "--gpus", gpus, "--seq-len", "64", "--json"))
            self.validate(estimate, "estimate")
            for rank in estimate["ranks"]:
                allocated, total = sums(rank)
                self.assertEqual(allocated, rank["peak_allocated_bytes"])
                self.assertEqual(total, rank["total_bytes"])

    def test_a_speed_without_memory_is_as_its_schema_says_and_names_the_origin_of_every_figure(self):
        job = ["--gpus", "2xH100-80GB", "--runtime", "pytorch-fsdp2", "--modeling", "torchtitan", "--attention", "flash"]
        output = subprocess.run([PROGRAM, "estimate", MODEL, *job, "--compile", "on", "--json"], capture_output=True, text=True, check=False)
        estimate = json.loads(output.stdout)
        self.validate(estimate, "estimate")
        self.assertEqual((estimate["verdict"], estimate["ranks"]), ("not_modelled", []))
        for figure in estimate["speed"]["figures"]:
            self.assertRegex(figure["origin"], "^(measured|published|fitted|assumed)", figure["name"])

    def test_an_estimate_with_what_ifs_is_as_its_schema_says(self):
        changes = [word for change in ("seq_len=128", "attention=cudnn", "gpus=4xRTX4090") for word in ("--what-if", change)]
        estimate = json.loads(program("estimate", MODEL, "--gpus", "2xH100-80GB", "--stack", "vramfit", "--seq-len", "64", *changes, "--json"))
        self.validate(estimate, "estimate")
        self.assertEqual([each["verdict"] for each in estimate["what_if"]], ["fits", "not_modelled", "fits"])
        total = estimate["ranks"][estimate["worst"]]["total_bytes"]
        for each in (estimate["what_if"][0], estimate["what_if"][2]):
            self.assertEqual(each["total_bytes"] - total, each["more_bytes"])
            self.assertEqual(sum(each["more_breakdown"].values()), each["more_bytes"])

    def test_what_is_in_memory_at_the_peak_is_as_the_schema_says(self):
        estimate = json.loads(program("estimate", MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", "--at-peak", "--json"))
        self.validate(estimate, "estimate")
        held = estimate["at_peak"]
        self.assertEqual(sum(each["bytes"] for each in held["modules"] if each["depth"] == 0), held["requested_bytes"])
        self.assertEqual(sum(each["count"] for each in held["largest"]), held["tensors"])

    def test_an_estimate_without_gpus_is_as_its_schema_says(self):
        self.validate(json.loads(program("estimate", MODEL, "--seq-len", "64", "--json")), "requirements")

    def test_what_upper_bounds_are_made_of_is_as_the_schemas_say(self):
        for kind, arguments in (("estimate", ["--gpus", "2xH100-80GB"]), ("requirements", [])):
            answer = json.loads(program("estimate", MODEL, "--seq-len", "64", "--confidence", "0.9", *arguments, "--json"))
            self.validate(answer, kind)
            bound = answer["bound"] if kind == "estimate" else answer["one_card"]["bound"]
            self.assertEqual(bound["confidence"], 0.9)
            within = {each["kind"]: each["within"] == each["cases"] for each in bound["cases"]}
            self.assertTrue(within["reserved"] and within["outside"], bound)
        plan = json.loads(program("plan", MODEL, "--gpus", "1xH100-80GB", "--seq-len", "64", "--micro-batch", "1", "--confidence", "0.9", "--json"))
        self.validate(plan, "plan")
        self.assertEqual(plan["prediction"]["bound"]["confidence"], 0.9)

    def test_a_plan_is_as_its_schema_says(self):
        plan = json.loads(program("plan", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64", "--json"))
        self.validate(plan, "plan")
        self.assertTrue(plan["fits"])
        self.assertEqual(plan["ranks"], plan["prediction"]["ranks"])

    def test_plans_of_several_clusters_are_as_the_schema_says(self):
        gpus = "2xcpu-1GiB,1xH100-80GB,1xcpu-1MiB,3xH100-80GB"
        plan = json.loads(program("plan", MODEL, "--gpus", gpus, "--seq-len", "64", "--global-batch", "4", "--tokens", "1B", "--json"))
        self.validate(plan, "plan")
        self.assertEqual([each["verdict"] for each in plan["clusters"]], ["fits", "fits", "no_plan", "refused"])
        self.assertEqual(plan["training"], plan["clusters"][1]["training"])

    def test_the_plan_of_the_largest_model_is_as_the_schema_says(self):
        plan = json.loads(program("plan", "--largest-model", "gpt2", "--gpus", "1xRTX4080", "--seq-len", "128", "--json"))
        self.validate(plan, "plan")
        self.assertEqual([each["name"] for each in plan["larger_models"]], ["openai-community/gpt2-xl"])

    def test_the_answer_that_there_is_no_plan_is_as_the_schema_says(self):
        plan = json.loads(program("plan", MODEL, "--gpus", "2xcpu-1MiB", "--seq-len", "64", "--json", expected=4))
        self.validate(plan, "plan")
        self.assertEqual(plan["verdict"], "no_plan")

    def test_a_run_and_a_comparison_are_as_their_schemas_say(self):
        plan = json.loads(program("plan", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64", "--json"))
        ranks = [{**rank, "pinned_bytes": 0, "peak_rss_bytes": 0} for rank in plan["prediction"]["ranks"]]
        run = {"schema": "vramfit/run@1", "model": {key: plan["model"][key] for key in ("name", "parameters")}, "job": plan["job"],
               "cluster": plan["cluster"], "fingerprint": plan["prediction"]["fingerprint"], "device": "cpu", "weights": "random (seed 0)", "data": "text", "loss": [5.0, None],
               "loss_scale": [], "skipped_steps": [], "step_seconds": [0.5, 0.25], "tokens_per_second": 10.0, "out_of_memory": False, "message": "", "ranks": ranks,
               "worst": plan["worst"]}
        self.validate(run, "run")
        with tempfile.TemporaryDirectory() as directory:
            paths = [os.path.join(directory, name) for name in ("plan.json", "run.json")]
            for path, document in zip(paths, (plan, run)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(document, file)
            comparison = json.loads(program("compare", *paths, "--json"))
            self.validate(comparison, "comparison")
            self.assertEqual(comparison["error"]["allocated"], 0)
            self.assertEqual(comparison["program_differences"], [])
            run["fingerprint"] = "0" * 16
            run["ranks"][plan["worst"]]["peak_allocated_bytes"] *= 2
            with open(paths[1], "w", encoding="utf-8") as file:
                json.dump(run, file)
            comparison = json.loads(program("compare", *paths, "--json", expected=7))
            self.validate(comparison, "comparison")
            self.assertEqual(comparison["error"]["allocated"], -0.5)
            self.assertEqual(len(comparison["program_differences"]), 1)

    @unittest.skipUnless(os.path.exists(os.path.join(os.path.dirname(PROGRAM), "vramfit-train")), "built without the executor")
    def test_a_calibration_is_as_its_schema_says(self):
        self.validate(json.loads(program("calibrate", "--gpus", "1xcpu-1GiB", "--seconds", "0.2", "--json")), "calibration")

    def test_an_imported_configuration_is_as_its_schema_says(self):
        examples = os.path.join(SOURCE, "tests", "cli", "configs", "examples")
        for name in sorted(os.listdir(examples)):
            self.validate(json.loads(program("import", "--json", os.path.join(examples, name))), "import")

    def test_an_explanation_is_as_its_schema_says(self):
        examples = os.path.join(SOURCE, "tests", "cli", "explain", "examples")
        job = [MODEL, "--gpus", "1xRTX4090", "--seq-len", "64", "--runtime", "pytorch", "--modeling", "transformers"]
        for name in sorted(os.listdir(examples)):
            for arguments in ([], job, [MODEL, "--gpus", "2xRTX4090", "--attention", "cudnn"]):  # the last isn't modelled
                found = json.loads(program("explain", os.path.join(examples, name), *arguments, "--json"))
                self.validate(found, "explanation")
                self.assertEqual("snapshot" in found, name.endswith(".pickle"))
                self.assertEqual("beside" in found, bool(arguments))
                part = found.get("log") or found["snapshot"]
                self.assertGreater(len(part.get("failures") or part["devices"]), part["explained"])

    def test_every_field_of_a_job_is_in_the_schema(self):
        with open(os.path.join(SOURCE, "tests", "cli", "job_flags.txt"), encoding="utf-8") as file:
            flags = [line.split()[0][2:].replace("-", "_") for line in file]
        self.assertEqual(list(load("common.schema.json")["$defs"]["job"]["properties"]), flags)


if __name__ == "__main__":
    unittest.main()
