#!/usr/bin/env bash
# sandbox-image.sh: builds the image of the Docker sandbox and imports it into the Docker daemon, without a registry.
#
#   deploy/sandbox-image.sh NAME[:TAG]
#
# The service builds this image itself unless SANDBOX_IMAGE is set. Use the script to build the image in advance, or to push it
# to a registry: docker push NAME:TAG, then set SANDBOX_IMAGE=NAME:TAG for the code workers.
#
# Requires Linux, python3 3.10 or later with pip, GNU tar, and docker (DOCKER_HOST selects the daemon). Downloads 100 MB from
# PyPI, pinned by hash, and leaves no files except the image.
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
# User, environment and command are not part of the image. The service sets them when it creates a container.
tar --numeric-owner --owner=0 --group=0 -cf - -C "$root" . | docker import - "$name"
