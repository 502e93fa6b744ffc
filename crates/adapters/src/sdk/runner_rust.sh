# Arguments: mark, main.rs, Cargo.toml up to the path, folder of the crate.
set -u
say() { printf '\n%s{"error":{"kind":"%s","type":"","message":""}}\n' "$1" "$2"; exit 1; }
command -v cargo >/dev/null 2>&1 || say "$1" toolchain
here=$PWD
folder=$4
case $folder in /*) ;; *) folder=$here/$folder ;; esac
[ -f "$folder/Cargo.toml" ] || say "$1" package
work=$(mktemp -d) || say "$1" build
mkdir "$work/src"
printf '%s' "$2" >"$work/src/main.rs"
printf '%s"%s" }\n' "$3" "$folder" >"$work/Cargo.toml"
export CARGO_HOME="${CARGO_HOME:-$work/home}" CARGO_TARGET_DIR="$work/target"
(cd "$work" && cargo build --quiet --offline 1>&2) || say "$1" build
exec "$work/target/debug/actum-runner" "$1"
