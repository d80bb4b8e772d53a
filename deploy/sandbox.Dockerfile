# Image of the Docker sandbox, for deployments with a registry:
#
#   docker build -f deploy/sandbox.Dockerfile -t REGISTRY/sluice-sandbox:TAG . && docker push REGISTRY/sluice-sandbox:TAG
#
# Then set SANDBOX_IMAGE=REGISTRY/sluice-sandbox:TAG for the code workers. deploy/sandbox-image.sh builds the same image without a
# registry.
FROM python:3.13-slim-bookworm AS build
COPY shared/sandbox/root/build_root.py shared/sandbox/root/requirements.txt /sandbox/
RUN pip install --no-cache-dir --quiet --no-deps --require-hashes --only-binary=:all: --no-compile \
      --target /image/opt/site -r /sandbox/requirements.txt \
 && python3 -B /sandbox/build_root.py /image

# Python, its libraries and the mount points; no shell and no package manager.
FROM scratch
COPY --from=build /image/ /
COPY shared/sandbox/python/ /opt/sandbox/
# Environment and command are not part of the image. The service sets them when it creates a container.
USER 65534:65534
WORKDIR /tmp
