#!/usr/bin/env bash
# The four commands on a model small enough for any machine: estimate, plan, run, compare. Run it from the repository's
# root after ./quickstart; set VRAMFIT to use the program of another build.
set -euo pipefail
vramfit=${VRAMFIT:-build/bin/vramfit}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# How much memory does a job need? Here its fields come from a file; flags would override them.
"$vramfit" estimate HuggingFaceTB/SmolLM2-135M --gpus 2xcpu-4GiB --job configs/jobs/smollm2-135m-cpu.json

# What is the fastest way to make it fit into less?
"$vramfit" plan HuggingFaceTB/SmolLM2-135M --gpus 2xcpu-2GiB --seq-len 128 --global-batch 4 -o "$out/plan.json"

# Train it, and compare the prediction with the run.
"$vramfit" run "$out/plan.json" --steps 3 --data docs -o "$out/run.json"
"$vramfit" compare "$out/plan.json" "$out/run.json"
