# autotune with the CUDA wheels from the package index: no CUDA toolkit in the image, the driver comes from
# the host.
#   docker build -t autotune .
#   docker run --rm -it --init --gpus all -v "$PWD:/work" -u "$(id -u):$(id -g)" autotune search --gpu 0 --shape 4096
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends make g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home tuner \
    && install --directory --mode=1777 /work

# Any user may be given at run time, and may read all of it, whatever the umask of the checkout.
COPY --chown=tuner . /opt/autotune
RUN chown tuner /opt/autotune && chmod --recursive a+rX /opt/autotune
USER tuner
WORKDIR /opt/autotune
# The step that `make search` begins with, and all that the manual uses: the build sees no GPU, and the image
# may serve any database. Pip's cache would stay in the image: all wheels twice.
RUN PIP_NO_CACHE_DIR=1 make setup EXTRAS=cluster-cublas-dashboard-postgresql-report-sanitizer-service-view

# The compiler's cache; any user may be given at run time, with or without a home.
ENV XDG_CACHE_HOME=/tmp/cache PATH=/opt/autotune/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["autotune"]
CMD ["--help"]
