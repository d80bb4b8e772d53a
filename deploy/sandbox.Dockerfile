# The image of the docker sandbox, for people with a registry:
#
#   docker build -f deploy/sandbox.Dockerfile -t REGISTRY/sluice-sandbox:TAG . && docker push REGISTRY/sluice-sandbox:TAG
#
# then SANDBOX_IMAGE=REGISTRY/sluice-sandbox:TAG for the code workers. deploy/sandbox-image.sh makes the same without one.
FROM python:3.13-slim-bookworm AS build
COPY shared/sandbox/root/build_root.py shared/sandbox/root/requirements.txt /sandbox/
RUN pip install --quiet --no-deps --require-hashes --only-binary=:all: --no-compile \
      --target /image/opt/site -r /sandbox/requirements.txt \
 && python3 -B /sandbox/build_root.py /image

# Python, its libraries and the mount points; no shell and no package manager.
FROM scratch
COPY --from=build /image/ /
COPY shared/sandbox/python/ /opt/sandbox/
# Variables and program are told with each container.
USER 65534:65534
WORKDIR /tmp
