#!/usr/bin/env bash
# sandbox-image.sh: makes the image of the docker sandbox and imports it into the Docker daemon, without a registry.
#
#   deploy/sandbox-image.sh NAME[:TAG]
#
# The service does the same by itself when SANDBOX_IMAGE is not set; this is for machines that are to have it before, or
# for an image that is pushed to a registry: docker push NAME:TAG, then SANDBOX_IMAGE=NAME:TAG for the code workers.
#
# Needs: Linux, python3 3.10 or newer with pip, GNU tar, docker (DOCKER_HOST says which daemon). Downloads 100 MB from PyPI,
# pinned by hash, and keeps nothing beside the image.
set -euo pipefail

name=${1:?usage: deploy/sandbox-image.sh NAME[:TAG]}
sandbox=$(cd "$(dirname "$0")/../shared/sandbox" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --no-compile --ignore-installed \
  --target "$root/opt/site" -r "$sandbox/root/requirements.txt"
python3 -B "$sandbox/root/build_root.py" "$root"
(cd "$sandbox/python" && find . \( -name '*.py' -o -name '*.txt' \) -exec install -D -m 644 {} "$root/opt/sandbox/{}" \;)
chmod 755 "$root"
# The daemon is told everything else with each container: its user, its variables, what it runs.
tar --numeric-owner --owner=0 --group=0 -cf - -C "$root" . | docker import - "$name"
