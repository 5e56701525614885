# The engine of kind `vllm`, for GPUs.
#
# NEVER BUILT and never run by this project so far: it had no machine that has both a GPU and the network
# that this needs. It follows the trainer's Dockerfile. Neither is there an engine of kind `vllm` in this
# version; the image is where it will run. Expect some 10 GB, and a driver on the node for the CUDA of
# vLLM's torch.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
# Behind a proxy that signs its own certificates: --secret id=ca,src=FILE
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv /tools && /tools/bin/pip install -q --no-cache-dir 'uv>=0.9' 'hatchling>=1.27'
WORKDIR /src

# Our own code, in a folder of its own: the last and smallest layer.
FROM tools AS application
COPY . .
RUN /tools/bin/uv build -q --offline --no-cache --wheel --no-build-isolation \
      --python /tools/bin/python -o /wheel && \
    python3 -m venv --without-pip /opt/flexmarl && \
    /tools/bin/uv pip install -q --offline --no-cache --no-deps --compile-bytecode \
      --python /opt/flexmarl/bin/python --target /opt/application /wheel/*.whl

FROM ${BASE}
RUN echo 'flexmarl:x:10001:10001:FlexMARL:/tmp:/usr/sbin/nologin' >> /etc/passwd && \
    echo 'flexmarl:x:10001:' >> /etc/group && \
    install -d -o 10001 -g 10001 /cache
# torch and what hangs on it are as vLLM pins them, not as constraints.txt does: they differ. The compiler
# and Python's headers stay: Triton compiles kernels when the engine starts.
ARG VLLM=0.32.0
COPY pyproject.toml /opt/
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi; \
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
      --no-install-recommends gcc g++ libc6-dev python3-dev >/dev/null && \
    rm -rf /var/lib/apt/lists/* && \
    python3 -m venv /tools && /tools/bin/pip install -q --no-cache-dir 'uv>=0.9' && \
    python3 -m venv --without-pip /opt/flexmarl && \
    /tools/bin/uv pip install -q --no-cache --compile-bytecode --python /opt/flexmarl/bin/python \
      "vllm==${VLLM}" -r /opt/pyproject.toml --extra rollout && \
    rm -rf /tools && \
    echo /opt/application > "$(echo /opt/flexmarl/lib/python3*/site-packages)/application.pth"
# python:slim comes without the compiled code of the standard library, which nobody can write here: each
# process would compile what it imports, a second of processor time.
RUN python3 -m compileall -q -x '/(ensurepip|idlelib|lib2to3|tests?|(site|dist)-packages)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
# Everything but /tmp and /cache may be read-only. Both may be volumes.
ENV PATH=/opt/application/bin:/opt/flexmarl/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
COPY --from=application /opt/application /opt/application
ARG BASE
ARG VERSION=unknown
LABEL org.opencontainers.image.title="FlexMARL engine-vllm" \
      org.opencontainers.image.description="FlexMARL's inference engine on vLLM, for GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE}"
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["flexmarl"]
