#!/bin/bash
# Stop what up.sh started, by its own pid files only.  Usage: down.sh STATE_DIR
S=${1:?state folder}
mine() { # pid file -> pid, only while that pid still is the daemon the file is named for
  local p n; p=$(cat "$1" 2>/dev/null) || return 1; n=$(basename "$1"); n=${n%%.*}
  [ -n "$p" ] && tr '\0' ' ' < "/proc/$p/cmdline" 2>/dev/null | grep -q "/$n " && echo "$p"
}
for f in "$S"/pids/*.pid; do [ -e "$f" ] || continue; p=$(mine "$f") && kill "$p"; done
for f in "$S"/pids/*.pid; do
  [ -e "$f" ] || continue
  for _ in $(seq 1 100); do p=$(mine "$f") || break; sleep 0.1; done
  p=$(mine "$f") && kill -9 "$p"
  rm -f "$f"
done
exit 0
