# Runs a program with its arguments as the user `nobody`, in mounts of its own. An ancestor of the program or of the project
# that others may not enter is covered by an empty folder, in which only these two are shown.
set -eu
here=$PWD
program=$1
shift
built=$(dirname "$(dirname "$program")")
project=$(dirname "$(dirname "$here")")
closed=
for place in "$built" "$project"; do
    while [ "$place" != / ]; do
        place=$(dirname "$place")
        case $(stat -c %A "$place") in
        *[xt]) ;;
        *) closed="$closed $place" ;;
        esac
    done
done
if [ -n "$closed" ]; then
    kept=$(mktemp -d)
    mkdir "$kept/built" "$kept/project"
    mount --bind "$built" "$kept/built"
    mount --bind "$project" "$kept/project"
    for place in $closed; do
        if [ -d "$place" ]; then mount -t tmpfs -o mode=755 none "$place"; fi
    done
    mkdir -p "$built" "$project"
    mount --bind "$kept/built" "$built"
    mount --bind "$kept/project" "$project"
    cd "$here"
fi
exec setpriv --reuid nobody --regid nogroup --clear-groups env HOME=/nonexistent "$program" "$@"
