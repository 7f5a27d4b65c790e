"""Values that sizes and branches follow from: those that are known are computed, the others follow named assumptions.

Usage: values_test.py steering|events|triton|writers|writers-compiled|drawn|band
"""
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
STEERING = os.path.join(os.path.dirname(FOLDER), "steering")
sys.path.insert(0, STEERING)
import assumed  # noqa: E402
import run  # noqa: E402
from hand_counts import eager_experts  # noqa: E402
sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "tests", "cli"))
from schemas_test import check, load  # noqa: E402

KNOWN = ("routing", "sequences", "decoding", "masks", "loops", "transfers")
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")


def rehearse(script, *flags, gpus="1xH100-80GB"):
    """(what was printed, the report)"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        done = subprocess.run([VRAMFIT, "rehearse", "--gpus", gpus, "-o", path, *flags, "--", sys.executable, *script],
                              capture_output=True, text=True, timeout=400)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        with open(path, encoding="utf-8") as file:
            return done.stdout, json.load(file)


def traces(printed):
    """{program: what it did}"""
    return dict(json.loads(line) for line in printed.splitlines() if line.startswith('["'))


def on_the_cpu():
    """What the programs with known values do on tensors of the CPU, as they would without vramfit."""
    done = [[f"{module}.{name}", run.trace(program, "cpu")] for module in KNOWN for name, program in run.programs(module)]
    assert not any(isinstance(trace, str) for _, trace in done), done  # an error
    return traces("\n".join(map(json.dumps, done)))


def marked_lines(path):
    """{line: the words of its comment} where a read is expected"""
    with open(path, encoding="utf-8") as file:
        comments = {line: text.partition("  # ")[2].strip() for line, text in enumerate(file, 1)}
    return {line: set(comment.split(", ")) for line, comment in comments.items() if comment}


def reads_by_line(report):
    """{line: assumptions that reads on it rest on, and `output` if nothing follows from any}"""
    found = {}
    for read in report["values"]["assumed_reads"]:
        path, line = read["what"].rsplit(" ", 1)[1].rsplit(":", 1)
        assert path.endswith("steering/assumed.py"), read  # all others are known
        assert read["at_risk"] == (read["steers"] and not set(read["assumptions"]) <= {"finite"}), read
        found.setdefault(int(line), []).append(read)
    return {line: {name for read in reads for name in read["assumptions"]} | (set() if any(read["steers"] for read in reads) else {"output"})
            for line, reads in found.items()}


def check_assumed(printed, report, end):
    done = traces(printed)
    for name, expected in assumed.EXPECTED.items():
        assert done[f"assumed.{name}"] == expected[end], (name, done[f"assumed.{name}"], expected[end])
    found, marked = reads_by_line(report), marked_lines(assumed.__file__)
    different = {line: (names, marked.get(line)) for line, names in found.items() if names != marked.get(line)}
    assert not different, different
    values = report["values"]
    assert report["verdict"] == "at_risk" and re.search(r"steering/assumed.py:\d+", report["why"]), report["why"]
    assert not values["certain"] and values["uncertain_reads"] == values["invented_reads"] == 0, values
    for name in ("finite", "routing", "selection", "sampled", "value"):
        assert f"assumed, {name}: " in printed, printed
    return found.keys()


def steering():
    """Sizes and branches equal those on CPU tensors where values are known; where they are not, they are what the assumptions say, and the report
    names exactly the lines that read them."""
    script = [os.path.join(STEERING, "run.py"), "cuda"]
    printed, report = rehearse([*script, *KNOWN, "assumed"])
    on_cpu, on_card = on_the_cpu(), traces(printed)
    assert len(on_cpu) >= 80, len(on_cpu)
    different = {name: (trace, on_card.get(name)) for name, trace in on_cpu.items() if on_card.get(name) != trace}
    assert not different, different
    lines = check_assumed(printed, report, 0)
    lines |= check_assumed(*rehearse([*script, "assumed"], "--set", "routing=worst,selected=0.25"), 1)
    assert lines == marked_lines(assumed.__file__).keys(), lines  # none is left out of both reports


def events_of(script, *flags):
    """What the caching allocator did on the first card, in its own record."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        _, report = rehearse(script, "--snapshot", path, *flags, gpus="4xH100-80GB")
        with open(path, "rb") as file:
            trace = pickle.load(file)["device_traces"][0]
    base = min(event["addr"] for event in trace)  # of the card, which lies elsewhere in each process
    streams = {stream: number for number, stream in enumerate(dict.fromkeys(event["stream"] for event in trace))}
    return [(event["action"], event["size"], event["addr"] - base, streams[event["stream"]]) for event in trace], report


def events():
    """The allocator sees the same events, streams and addresses included, with values computed and without."""
    script = [os.path.join(FOLDER, "fully_shard.py")]
    arguments = ["--ranks", "0"]
    without, _ = events_of(script, *arguments, "--set", "values=unknown")
    computed, report = events_of(script, *arguments)
    assert len(without) > 1000, len(without)
    first = next((n for n, (a, b) in enumerate(zip(without, computed)) if a != b), None)
    assert without == computed, f"{len(without)} and {len(computed)} events; event {first} differs: {without[first]}, {computed[first]}"
    print(f"{len(computed)} events; {report['values']}")


def triton():
    """What a kernel of Triton doesn't write stays known, though it lies beside what it does. What it writes to stays autograd's own, which sums there."""
    printed, report = rehearse([os.path.join(FOLDER, "triton_kernel.py")])
    assert "gradients 2\n" in printed, printed
    assert re.findall("^sizes (.*)", printed, re.M) == ["128 128 128"] * 2, printed
    assert report["values"]["certain"], report["values"]


def writers(*arguments):
    """Where a value that nobody computes is read, the report names what wrote it."""
    script = os.path.join(FOLDER, "unknown_writers.py")
    _, report = rehearse([script, *arguments])
    names = {"Triton": "double_it", "graph": "a CUDA graph", "compiled": r"triton_\w+"}
    lines = marked_lines(script)
    for line, (what,) in lines.items():
        if what not in names or what == "compiled" and "compile" not in arguments:
            continue
        said = [read["what"] for read in report["values"]["assumed_reads"] if read["what"].endswith(f"unknown_writers.py:{line}")]
        assert any(re.match(f"item of what {names[what]} wrote at ", each) for each in said), (what, said, report["values"])
    (known,) = (line for line, what in lines.items() if what == {"known again"})
    assert not any(read["what"].endswith(f":{known}") for read in report["values"]["assumed_reads"]), report["values"]


def drawn():
    """Rows draw their experts: each layer others, its recomputation, other steps and other ranks the same, and another seed others again."""
    script = [os.path.join(FOLDER, "drawn_routing.py")]
    found = []
    for seed in (3, 4):
        printed, _ = rehearse(script, "--set", f"routing=drawn:{seed}", gpus="2xH100-80GB")
        said = re.findall(r"^([01]) (first|second) ([\d ]+)$", printed, re.M)
        assert len(said) == 2 * 2 * 4, printed  # ranks, layers; 2 steps, each forward and again in backward
        counts = {layer: {numbers for _, name, numbers in said if name == layer} for layer in ("first", "second")}
        assert all(len(numbers) == 1 for numbers in counts.values()), printed
        found += [numbers for (numbers,) in counts.values()]
    assert len(set(found)) == 4, found
    for numbers in (list(map(int, text.split())) for text in found):
        assert sum(numbers) == 2 * 512 and 64 < min(numbers) <= max(numbers) < 192 and len(set(numbers)) > 1, numbers


def band():
    """Both ends of routing in one command: verdict, band and places, and peaks within 1 % of a count by hand."""
    command = [VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--band", "--json", "--", sys.executable, os.path.join(FOLDER, "experts.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    found, schema = json.loads(done.stdout), load("rehearsal-band.schema.json")
    check(found, schema, schema)
    totals = [end["total_bytes"] for end in found["ends"]]
    assert [end["values"] for end in found["ends"]] == [{"routing": "balanced"}, {"routing": "worst"}], found
    assert found["verdict"] == "at_risk" and [found["least_bytes"], found["most_bytes"]] == totals and totals[0] < totals[1], found
    assert found["assumptions"] == ["routing"] and found["assumptions_without_ends"] == [], found
    assert all("experts.py:" in end["why"] for end in found["ends"]), found
    for routing, most_rows, sizes in (("balanced", 2048, "2048 " * 8), ("worst", 8192, "8192 8192" + " 0" * 6)):
        said = re.findall(rf"^\[routing={routing} selected=1\] (\w+) (.*)", done.stderr, re.M)
        assert said.count(("sizes", sizes.strip())) == 2, done.stderr
        for peak in [int(number) for what, number in said if what == "peak"]:
            count = eager_experts(most_rows)
            assert abs(peak - count) <= 0.01 * count, f"{routing}: {peak} bytes, by hand {count}"


if __name__ == "__main__":
    {"steering": steering, "events": events, "triton": triton, "writers": lambda: (writers(), writers("bare")), "writers-compiled": lambda: writers("compile"), "drawn": drawn,
     "band": band}[sys.argv[1]]()
