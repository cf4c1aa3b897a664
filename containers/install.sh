#!/bin/sh
# Installs sweeper from the folder it is called in, with all extras, in a Debian container as root.
set -eu
apt-get update
DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
    ca-certificates python3 python3-venv
rm -rf /var/lib/apt/lists/*
python3 -m venv /opt/sweeper
/opt/sweeper/bin/pip install --no-cache-dir '.[timm,nvml]'
