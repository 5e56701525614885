# The processes with torch: trainer, and the engine of kind `transformers` (and `scripted`, for a pool that
# mixes them). Which one runs is the argument: `serve NAME`.
#
# torch comes as PyPI has it, with its CUDA libraries: one image for GPUs and for CPUs.
# Any base with a Python 3.11 or newer, its venv module and CA certificates will do.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
# Behind a proxy that signs its own certificates: --secret id=ca,src=FILE
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    python3 -m venv /tools && /tools/bin/pip install -q --no-cache-dir 'uv>=0.9' 'hatchling>=1.27'
WORKDIR /src

# A list that changes only when a dependency does: the layer made from it is kept until then.
FROM tools AS requirements
COPY pyproject.toml constraints.txt ./
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca; fi; \
    /tools/bin/uv pip compile -q --no-cache --no-header --no-annotate -c constraints.txt \
      --extra trainer pyproject.toml -o /requirements.txt

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
COPY --from=requirements /requirements.txt /opt/
# Installed here, not copied from a stage: it is some gigabytes.
RUN --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca; fi; \
    python3 -m venv /tools && /tools/bin/pip install -q --no-cache-dir 'uv>=0.9' && \
    python3 -m venv --without-pip /opt/flexmarl && \
    /tools/bin/uv pip install -q --no-cache --compile-bytecode --python /opt/flexmarl/bin/python \
      -r /opt/requirements.txt && \
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
LABEL org.opencontainers.image.title="FlexMARL trainer" \
      org.opencontainers.image.description="FlexMARL's trainer slots and transformers engines" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.base.name="${BASE}"
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["flexmarl"]
