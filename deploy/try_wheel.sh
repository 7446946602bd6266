#!/bin/sh
# Install a wheel on each Python that is named, serve an agent with it and ask the agent something:
#   deploy/try_wheel.sh dist/dragoman-*.whl python3.11 python3.12 python3.13 python3.14
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
wheel=$(realpath "$1")
shift
folder=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || :; rm -rf "$folder"' EXIT

for python in "$@"; do
    environment=$folder/$(basename "$python")
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check \
        --constraint "$root/constraints.txt" "$wheel[all]"
    cd "$environment"
    # There from the beginning: the server makes them when it comes to it.
    touch ready.txt log.txt
    bin/dragoman serve "$root/examples/weather.py" --listen 127.0.0.1:0 --store memory: \
        >ready.txt 2>log.txt &
    server=$!
    for _ in $(seq 300); do
        address=$(sed -n 's/^Ready: //p' ready.txt log.txt)
        [ -n "$address" ] && break
        sleep 0.1
    done
    bin/dragoman send -a "$address" Oslo >answer.txt 2>&1 || { cat log.txt answer.txt; exit 1; }
    grep -q "Sunny in Oslo" answer.txt
    kill "$server"
    wait "$server" || :
    echo "$(bin/python --version): $(bin/dragoman --version)"
done
