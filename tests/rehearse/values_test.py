"""Values that sizes and branches follow from: those that are known are computed, the others follow named assumptions.

Usage: values_test.py known|assumed|events|triton
"""
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
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


def known():
    """Sizes and branches equal those on CPU tensors, and the report calls them certain."""
    printed, report = rehearse([os.path.join(FOLDER, "steering.py")])
    programs, different = map(int, re.search(r"(\d+) programs, (\d+) different", printed).groups())
    assert programs >= 30 and different == 0, printed
    assert report["values"]["certain"] and report["verdict"] == "fits", (report["values"], report["notes"])


def numbers_after(word, printed):
    return [int(number) for number in re.search(f"^{word} ([\\d ]+)", printed, re.M).group(1).split()]


def assumed():
    script = os.path.join(FOLDER, "assuming.py")
    printed, report = rehearse([script])
    assert numbers_after("steps", printed) == [3], printed  # finite
    assert numbers_after("sizes", printed) == [96 * 2 // 8] * 8, printed
    assert numbers_after("selected", printed) == [96], printed
    assert "generated 2 12 True" in printed and "scale 65536.0" in printed, printed
    reads = {read["what"]: read for read in report["values"]["assumed_reads"]}
    assert report["verdict"] == "at_risk" and not report["values"]["certain"], report["why"]
    assert re.search(r"(scripts/)?assuming.py:\d+", report["why"]), report["why"]
    names = {name for read in reads.values() for name in read["assumptions"]}
    assert {"finite", "routing", "selection", "sampled", "value"} <= names, names
    lines = {line: text.strip() for line, text in enumerate(open(script, encoding="utf-8"), 1)}
    finite = [read for read in reads.values() if read["assumptions"] == ["finite"] and read["steers"]]
    assert any(lines[int(read["what"].rsplit(":", 1)[1])].startswith("if not torch.isfinite") for read in finite), reads
    assert not any(read["at_risk"] for read in finite), finite
    logged = [read for read in reads.values() if not read["steers"]]
    assert any("loss.item" in lines[int(read["what"].rsplit(":", 1)[1])] for read in logged), reads
    for name in ("routing", "selection", "sampled"):
        assert f"assumed, {name}: " in printed, printed
    printed, _ = rehearse([script], "--set", "routing=worst,selected=0.25")
    assert numbers_after("sizes", printed) == [96, 96, 0, 0, 0, 0, 0, 0], printed
    assert numbers_after("selected", printed) == [24], printed


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
    """What a kernel of Triton doesn't write stays known, though it lies beside what it does."""
    printed, report = rehearse([os.path.join(FOLDER, "triton_kernel.py")])
    assert re.findall("^sizes (.*)", printed, re.M) == ["128 128 128"] * 2, printed
    assert report["values"]["certain"], report["values"]


if __name__ == "__main__":
    {"known": known, "assumed": assumed, "events": events, "triton": triton}[sys.argv[1]]()
