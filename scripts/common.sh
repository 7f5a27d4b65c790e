# Sourced by quickstart, test and the scripts here. Paths, messages, and the settings of a build.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VRAMFIT_CACHE="${VRAMFIT_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set VRAMFIT_CACHE}/.cache}/vramfit}"
started_at=$SECONDS
umask go-w # what lies in the cache is run later

say() { printf '%s\n' "$*" >&2; }
step() { printf '\n== %s  [%d s]\n' "$*" $((SECONDS - started_at)) >&2; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# The virtual environment that is used: one that the user names, or the one scripts/setup made.
venv() { printf '%s' "${VRAMFIT_VENV:-$ROOT/.venv}"; }

# What lies in the cache is run, so nobody else may have put it there: dies when one of the folders $@, as far as they are
# there, belongs to another user (but root) or can be written to by others.
trust() {
  local folder owner mode
  for folder in "$@"; do
    [[ -e $folder ]] || continue
    read -r owner mode < <(stat -Lc '%u %a' -- "$folder")
    [[ $owner == "$(id -u)" || $owner == 0 ]] ||
      die "$folder belongs to another user, who could have put programs there; set VRAMFIT_CACHE to a folder of your own"
    (((8#$mode & 8#22) == 0)) ||
      die "others may write to $folder and could have put programs there; remove it, or see what is in it and run: chmod go-w $folder"
  done
}

# Gives the environment $1.partial, now that all is in it, its name $1, by which its programs (torchrun) find their Python.
name_environment() {
  local partial="$1.partial" programs
  readarray -d '' -t programs < <(grep -rlIZF -- "$partial" "$partial/bin")
  ((${#programs[@]} == 0)) || sed -i "s|$partial|$1|g" -- "${programs[@]}"
  mv -T -- "$partial" "$1"
}

# Two users of one cache, or two terminals, build one after the other. $1 is the lock's name.
lock() {
  mkdir -p "$VRAMFIT_CACHE" || die "cannot make $VRAMFIT_CACHE; set VRAMFIT_CACHE to a folder that can be written"
  trust "$VRAMFIT_CACHE"
  exec 9>"$VRAMFIT_CACHE/$1.lock"
  flock -n 9 || { say "waiting for another process that holds $VRAMFIT_CACHE/$1.lock"; flock 9; }
}

# build PRESET [TARGET...]: configures and builds; does nothing, quickly, when nothing changed.
build() {
  local preset=$1
  shift
  trust "$VRAMFIT_CACHE" "${CCACHE_DIR:-$VRAMFIT_CACHE/ccache}"
  export CCACHE_DIR="${CCACHE_DIR:-$VRAMFIT_CACHE/ccache}" CCACHE_MAXSIZE="${CCACHE_MAXSIZE:-3G}"
  export CCACHE_BASEDIR="$ROOT" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime
  local options=("-DVRAMFIT_VENV=$(venv)")
  if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER:-} ]] && command -v ccache >/dev/null; then
    options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  local log="$ROOT/build/$preset-configure.log"
  mkdir -p "$ROOT/build"
  (cd "$ROOT" && cmake --preset "$preset" "${options[@]}") >"$log" 2>&1 || {
    cat "$log" >&2
    die "configuring failed (the output above is in $log)"
  }
  ninja -C "$ROOT/build/$preset" ${VRAMFIT_JOBS:+-j "$VRAMFIT_JOBS"} "$@" >&2 || die "building the preset $preset failed"
}
