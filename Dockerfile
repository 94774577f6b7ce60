# A server without a compiler: the first stage builds the wheel, the second one has Python, torch for CPUs and the wheel.
#
#   docker build -t lampwork-server .
#   docker run -p 8000:8000 -v "$PWD/models:/models:ro" -v lampwork-cache:/var/cache/lampwork lampwork-server \
#       /models/model.lamp --key /models/release.pub.pem
#
# docs/notebook_to_server.md says how the model gets there.
ARG PYTHON=3.11

FROM python:${PYTHON}-bookworm AS build
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# The very torch that the second stage has: the extension runs with that one.
RUN python -m pip install "setuptools>=77,<90" "wheel<1" "ninja<2" "numpy<3" \
    && python -m pip install --index-url "${TORCH_INDEX}" "torch==${TORCH}"
COPY setup.py pyproject.toml README.md LICENSE ./
COPY csrc csrc
COPY cpp cpp
COPY src src
RUN python -m pip wheel --no-build-isolation --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m pip install --index-url "${TORCH_INDEX}" "torch==${TORCH}"
COPY --from=build /wheels /wheels
# cryptography checks signatures. What only loads trusted files needs neither llvmlite nor bytecode.
RUN python -m pip install /wheels/*.whl "cryptography>=42,<60" \
    && rm -r /wheels \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin lampwork \
    && install --directory --owner lampwork --mode 0700 /var/cache/lampwork
COPY examples/server.py /app/server.py
# Whom else could write there would decide what code runs, so it is this user's alone.
ENV LAMPWORK_CACHE=/var/cache/lampwork PYTHONUNBUFFERED=1
VOLUME /var/cache/lampwork
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["python", "/app/server.py", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models/model.lamp"]
