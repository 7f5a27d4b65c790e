# Sourced by scripts/setup: Debian packages, each with a probe that also finds other installations of it.

has_command() { command -v "$1" >/dev/null; }
has_header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 || -n $(compgen -G "/usr/include/*-linux-gnu/$1") ]]; }
has_venv() { "${VRAMFIT_PYTHON:-python3}" -c 'import venv, ensurepip' 2>/dev/null; }
# Triton compiles a module of its own when a rehearsed program uses it.
has_python_headers() { "${VRAMFIT_PYTHON:-python3}" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; }
has_cmake() { has_command cmake && [[ $(printf '%s\n' 3.25 "$(cmake --version | grep -oE '[0-9.]+' | head -1)" | sort -V | head -1) == 3.25 ]]; }

PACKAGES_OF_PROGRAM=(
  "g++|has_command g++"
  "cmake|has_cmake"
  "ninja-build|has_command ninja"
  "ccache|has_command ccache"
  "libfmt-dev|has_header fmt/format.h"
  "libcli11-dev|has_header CLI/CLI.hpp"
  "nlohmann-json3-dev|has_header nlohmann/json.hpp"
  "libcurl4-openssl-dev|has_header curl/curl.h"
  "libyaml-dev|has_header yaml.h"
  "libtomlplusplus-dev|has_header toml++/toml.h"
)
PACKAGES=(
  "${PACKAGES_OF_PROGRAM[@]}"
  "doctest-dev|has_header doctest/doctest.h"
  "libgloo-dev|has_header gloo/rendezvous/store.h"
  "libzstd-dev|has_header zstd.h"
  "python3-venv|has_venv"
  "python3-dev|has_python_headers"
  "ca-certificates|test -s /etc/ssl/certs/ca-certificates.crt"
)
PACKAGES_FOR_FULL_TESTS=("clang-format|has_command clang-format" "clang-tidy|has_command clang-tidy" "iproute2|has_command ip")

missing_packages() {
  local row
  for row in "$@"; do
    ${row#*|} || printf '%s\n' "${row%%|*}"
  done
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "packages: nothing missing"
    return
  fi
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3)
  say "packages missing: ${missing[*]}"
  has_command apt-get || die "apt-get was not found; install the equivalents of the Debian packages ${missing[*]}, then run this again"
  if [[ $(id -u) -ne 0 ]]; then
    sudo -n true 2>/dev/null || die "installing them needs root. Run this, then start again:
  sudo apt-get install --no-install-recommends ${missing[*]}"
    apt=(sudo -n "--preserve-env=http_proxy,https_proxy,no_proxy" "${apt[@]}")
  fi
  say "installing them with apt-get"
  "${apt[@]}" -qq update >&2 || say "apt-get update failed; trying with the lists at hand"
  "${apt[@]}" -qq -y --no-install-recommends install "${missing[@]}" >&2 ||
    die "apt-get could not install ${missing[*]} (its messages are above)"
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -eq 0 ]] || die "installed, but still not found: ${missing[*]}"
}
