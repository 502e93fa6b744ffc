# Arguments: mark, main.go, folder of the module or nothing.
set -u
say() { printf '\n%s{"error":{"kind":"%s","type":"","message":""}}\n' "$1" "$2"; exit 1; }
command -v go >/dev/null 2>&1 || say "$1" toolchain
here=$PWD
work=$(mktemp -d) || say "$1" build
printf '%s' "$2" >"$work/main.go"
printf 'module actum.invalid/runner\n\ngo 1.18\n' >"$work/go.mod"
version=$(go env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9]*\.[0-9]*\).*/\1/p')
printf 'go %s\n\nuse .\n' "${version:-1.18}" >"$work/go.work"
folder=${3:-$here}
case $folder in /*) ;; *) folder=$here/$folder ;; esac
if [ -f "$folder/go.mod" ]; then printf 'use "%s"\n' "$folder" >>"$work/go.work"; fi
export GOFLAGS= GOPROXY=off GOWORK="$work/go.work" GOTOOLCHAIN=local
export GOCACHE="${GOCACHE:-$work/cache}" GOPATH="${GOPATH:-$work/path}"
(cd "$work" && go build -o runner . 1>&2) || say "$1" build
exec "$work/runner" "$1"
